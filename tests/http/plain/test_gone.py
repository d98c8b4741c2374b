"""A client that hangs up cancels its call; a `def` method past its deadline is answered at the deadline."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from twinkle_mesh import DeviceGroup
from twinkle_remote import remote_class, remote_function, serve, session

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOKEN = "t" * 40
_SEEN: list[str] = []
_FREE = threading.Event()


@remote_class()
class Slow:
    @remote_function(dispatch="all", collect="first")
    async def dreams(self) -> str:
        _SEEN.append("begun")
        try:
            await asyncio.sleep(600.0)
        except asyncio.CancelledError:
            _SEEN.append("cancelled")
            raise
        return "dreamt"

    @remote_function(dispatch="all", collect="first")
    def holds(self) -> str:
        _SEEN.append("begun")
        _FREE.wait(60.0)
        return "held"

    @remote_function(dispatch="all", collect="first", timeout=0.3)
    def late(self) -> str:
        _FREE.wait(60.0)
        return "late"

    @remote_function(dispatch="all", collect="first")
    def notes(self, text: str) -> str:
        _SEEN.append(text)
        return text

    @remote_function(dispatch="all")
    def items(self) -> Iterator[int]:
        try:
            for number in range(100_000):
                _SEEN.append("item")
                time.sleep(0.01)
                yield number
        finally:
            _SEEN.append("closed")


class Place:
    def __init__(self, address: str) -> None:
        self._address = address
        self.id = self.post("", {})["id"]

    def request(self, path: str, body: Any) -> urllib.request.Request:
        headers = {"Authorization": f"Bearer {_TOKEN}"}
        return urllib.request.Request(f"{self._address}/v1/Slow{path}", json.dumps(body).encode(), headers)

    def post(self, path: str, body: Any) -> Any:
        try:
            with urllib.request.urlopen(self.request(path, body), timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return json.load(error)

    def hang_up(self, method: str, body: Any, after: str) -> None:
        """Ask, and close the connection as soon as something was seen."""
        host, data = self._address.removeprefix("http://"), json.dumps(body).encode()
        head = f"POST /v1/Slow/{self.id}/{method} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {_TOKEN}\r\n"
        with socket.create_connection((host.split(":")[0], int(host.split(":")[1]))) as connection:
            connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
            seen(after) if after else time.sleep(0.3)


def seen(text: str) -> None:
    until = time.monotonic() + 30.0
    while text not in _SEEN and time.monotonic() < until:
        time.sleep(0.01)
    assert text in _SEEN


@pytest.fixture
def place() -> Iterator[Place]:
    _SEEN.clear()
    _FREE.clear()
    with session("threads", groups=[DeviceGroup("g", 1, "CPU")]), serve([Slow], token=_TOKEN, port=0) as server:
        yield Place(server.address)
        _FREE.set()


def test_a_coroutine_is_cancelled(place: Place) -> None:
    place.hang_up("dreams", {}, "begun")
    seen("cancelled")


def test_a_generator_is_closed(place: Place) -> None:
    place.hang_up("items", {}, "item")
    seen("closed")


def test_a_method_that_has_not_begun_does_not_run(place: Place) -> None:
    place.hang_up("holds", {}, "begun")
    place.hang_up("notes", {"text": "for nobody"}, "")
    time.sleep(0.3)
    _FREE.set()
    assert place.post(f"/{place.id}/notes", {"text": "after"}) == {"result": "after"}
    assert "for nobody" not in _SEEN


def test_a_deadline_is_answered(place: Place) -> None:
    began = time.monotonic()
    answer = place.post(f"/{place.id}/late", {})
    assert answer["error"]["type"] == "CallTimeoutError" and time.monotonic() - began < 30.0
