"""What is no request, or an endless one, ends its connection; a second request cannot hide behind a first one."""

from __future__ import annotations

import asyncio
import inspect
import socket
import time
from typing import TYPE_CHECKING

import pytest
from tests.http.place import Place
from uvicorn.config import HTTP_PROTOCOLS
from uvicorn.protocols.http.h11_impl import H11Protocol

from twinkle_http.server.requests.timeouts import TimedConnection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

TOKEN = "a token of these tests"
SERVER = f"""
    import sys
    from twinkle_mesh import DeviceGroup
    from twinkle_remote import serve, session
    from twinkle_remote.conformance.subjects.components import Counter

    with session("threads", groups=[DeviceGroup("group", 1, "CPU")]):
        with serve([Counter], port=0, token={TOKEN!r}) as server:
            print(server.address, flush=True)
            sys.stdin.read()
"""
CHUNKED = "transfer-encoding: chunked\r\n"
POST = "POST /v1/Counter HTTP/1.1\r\nhost: {host}\r\n"
WITH_TOKEN = POST + "authorization: Bearer " + TOKEN + "\r\n" + CHUNKED + "\r\n"
HEALTH = "GET /health HTTP/1.1\r\nhost: {host}\r\n\r\n"
MALFORMED = (
    POST + "content-length: 5\r\ncontent-length: 0\r\n\r\n",
    POST + "content-length: 0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    POST + "transfer-encoding: chunked\r\ncontent-length: 0\r\n\r\n0\r\n\r\n",
    POST + "transfer-encoding: gzip\r\n\r\n0\r\n\r\n",
    POST + "transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    POST + "transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    POST + "content-length: +0\r\n\r\n",
    POST + "content-length: -1\r\n\r\n",
    POST + "content-length: 0x0\r\n\r\n",
    POST + "content-length : 0\r\n\r\n",
    POST + "x: a\0b\r\n\r\n",
    POST + "x: a\rb: c\r\n\r\n",
    POST + ": empty\r\n\r\n",
    POST + CHUNKED + "\r\n0x1\r\na\r\n0\r\n\r\n",
    POST + CHUNKED + "\r\n-1\r\na\r\n0\r\n\r\n",
    POST + CHUNKED + "\r\n1\r\nab\r\n0\r\n\r\n",
    POST + CHUNKED + "\r\n1\na\n0\n\n",
    "GET http://evil.example/health HTTP/1.1\r\nhost: {host}\r\n\r\n",
    "GET http://{host}/health HTTP/1.1\r\nhost: {host}\r\n\r\n",
    "CONNECT {host} HTTP/1.1\r\nhost: {host}\r\n\r\n",
    "OPTIONS * HTTP/1.1\r\nhost: {host}\r\n\r\n",
    "GET health HTTP/1.1\r\nhost: {host}\r\n\r\n",
    "GET /health HTTP/3.7\r\nhost: {host}\r\n\r\n",
    "GET /health\r\n\r\n",
    "\x16\x03\x01\x02\x00\x01\x00\x01",
)

TOLERATED = (
    POST + "content-length: 0, 0\r\n\r\n",
    POST + "x: a\r\n b\r\n\r\n",
    "POST /v1/Counter HTTP/1.1\nhost: {host}\n\n",
    POST + CHUNKED + "\r\n" + "f" * 20 + "\r\na\r\n0\r\n\r\n",
)
"""What RFC 9112 lets a server read: a list of equal lengths, folded lines, bare line feeds, chunks of any size."""


class Raw(Place):
    """Requests over sockets of their own."""

    def statuses(self, text: str) -> list[int]:
        """The statuses of all answers to these bytes, until the server closes the connection."""
        with socket.create_connection(self.place, timeout=30.0) as connection:
            connection.sendall(text.format(host=self.host).encode("latin-1"))
            got = b""
            while part := connection.recv(65536):
                got += part
        return [int(line.split(b" ", 1)[0]) for line in got.split(b"HTTP/1.1 ")[1:]]

    def endless(self, head: str, line: str, seconds: float = 15.0) -> int:
        """Bytes that the server has taken of a request that does not end, until it closed the connection."""
        sent, until = 0, time.monotonic() + seconds
        with socket.create_connection(self.place, timeout=30.0) as connection:
            connection.sendall(head.format(host=self.host).encode("latin-1"))
            try:
                while time.monotonic() < until and sent < 100 << 20:
                    connection.sendall(line.encode("latin-1"))
                    sent += len(line)
            except OSError:
                return sent
        raise AssertionError(f"the server has taken {sent} bytes")


@pytest.fixture(scope="module")
def place(serving: Callable[..., AbstractContextManager[str]]) -> Iterator[Raw]:
    with serving(SERVER) as address:
        yield Raw(address)


@pytest.mark.parametrize("text", MALFORMED)
def test_what_is_malformed_is_refused_and_what_follows_is_not_read(place: Raw, text: str) -> None:
    assert place.statuses(text + HEALTH) in ([400], [421])


@pytest.mark.parametrize("text", TOLERATED)
def test_what_is_tolerated_needs_a_token_and_what_follows_is_not_read(place: Raw, text: str) -> None:
    assert place.statuses(text + HEALTH) == [401]


def test_requests_that_do_not_wait_for_answers_are_answered_in_order(place: Raw) -> None:
    missing = "GET /nothing HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer " + TOKEN + "\r\n\r\n"
    last = HEALTH.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n")
    assert place.statuses((HEALTH + missing) * 4 + last) == [204, 404] * 4 + [204]


def test_many_requests_that_do_not_wait_are_answered_one_after_the_other(place: Raw) -> None:
    last = HEALTH.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n")
    assert place.statuses(HEALTH * 1000 + last) == [204] * 1001


def test_headers_behind_a_body_are_not_those_of_the_request(place: Raw) -> None:
    text = (
        "POST /v1/Counter HTTP/1.1\r\nhost: {host}\r\n"
        + CHUNKED
        + "\r\n0\r\nauthorization: Bearer "
        + TOKEN
        + "\r\n\r\n"
    )
    assert place.statuses(text) == [401]


def test_empty_headers_stay_apart(place: Raw) -> None:
    text = "GET /health HTTP/1.1\r\nauthorization:\r\nx:\r\nhost: {host}\r\nempty:\r\nconnection: close\r\n\r\n"
    assert place.statuses(text) == [204]


def test_a_request_for_another_protocol_is_answered_by_this_one_and_is_the_last(place: Raw) -> None:
    other = "connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n"
    assert place.statuses(HEALTH[:-2] + other + HEALTH) == [204]


@pytest.mark.parametrize(
    ("head", "line"),
    [
        ("GET /health HTTP/1.1\r\nhost: {host}\r\n", "x: " + "a" * 1000 + "\r\n"),
        ("GET /health HTTP/1.1\r\nhost: {host}\r\nx: ", "a" * 1000),
        ("GET /", "a" * 1000),
        (WITH_TOKEN, "1;" + "a" * 1000),
        (WITH_TOKEN + "0\r\n", "x: " + "a" * 1000 + "\r\n"),
    ],
)  # fmt: skip
def test_a_head_that_does_not_end_is_refused_while_little_of_it_is_kept(place: Raw, head: str, line: str) -> None:
    assert place.endless(head, line) < 20 << 20


def test_uvicorn_is_used_as_it_is_today() -> None:
    """A connection passes on to it what the event loop calls; another version may take more, or be made otherwise."""
    assert HTTP_PROTOCOLS["h11"] == f"{H11Protocol.__module__}:{H11Protocol.__qualname__}"
    assert list(inspect.signature(H11Protocol).parameters) == ["config", "server_state", "app_state", "_loop"]
    assert issubclass(H11Protocol, asyncio.Protocol) and not issubclass(H11Protocol, asyncio.BufferedProtocol)
    called = {name for name in dir(asyncio.Protocol) if not name.startswith("_")}
    assert {name for name in called if name in vars(H11Protocol)} <= set(vars(TimedConnection))
