"""Requests over sockets of their own, as a stranger, or a client gone wrong, sends them."""

from __future__ import annotations

import itertools
import json
import socket
import time
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from twinkle_http.errors import own_error_type
from twinkle_http.messages import CallUpdate, UpdateAnswer, unpacked
from twinkle_http.wire import decode, encode

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
ONE, TWO = "token number one", "token number two"


class Raw:
    """A server's place, and requests to it.

    Args:
        address: Its URL.
        token: The token of requests that name no other.
    """

    def __init__(self, address: str, token: str = ONE) -> None:
        url = urlsplit(address)
        assert url.hostname and url.port
        self.place, self.host, self.token = (url.hostname, url.port), f"{url.hostname}:{url.port}", token
        self.numbers = itertools.count(100_000)

    def connected(self) -> socket.socket:
        connection = socket.create_connection(self.place, timeout=60.0)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def head(self, method: str, path: str, length: int | None, token: str = "", **headers: str) -> bytes:
        """The head of a request; a header with empty text is left out."""
        given = {"host": self.host, "authorization": f"Bearer {token or self.token}", **headers}
        if length is not None:
            given.setdefault("content-length", str(length))
        lines = [f"{key.replace('_', '-')}: {value}" for key, value in given.items() if value]
        return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode("latin-1")

    def answer(self, connection: socket.socket, *, headless: bool = False) -> tuple[int, bytes]:
        """Status and body of the next answer; status 0 if the connection was closed without one."""
        got = b""
        while b"\r\n\r\n" not in got:
            part = connection.recv(1)  # nothing of the answer behind it
            if not part:
                return 0, got
            got += part
        lines = got.decode().lower().split("\r\n")
        length = next((int(line.partition(":")[2]) for line in lines if line.startswith("content-length:")), 0)
        body = b""
        while len(body) < length and not headless:
            body += connection.recv(length - len(body))
        return int(lines[0].split()[1]), body

    def send(self, data: bytes) -> tuple[int, bytes]:
        """Status and body of the answer to these bytes."""
        with self.connected() as connection:
            connection.sendall(data)
            return self.answer(connection, headless=data.startswith(b"HEAD"))

    def request(self, method: str, path: str, body: bytes = b"", token: str = "", **headers: str) -> tuple[int, bytes]:
        return self.send(self.head(method, path, len(body), token, **headers) + body)

    def post(self, path: str, value: Any, token: str = "", **headers: str) -> tuple[int, Any]:
        """Send a value as Twinkle's own client does; the answer is the error, if there is one."""
        status, body = self.request("POST", f"/twinkle/1{path}", encode(value).to_bytes(), token, **headers)
        if status == 200:
            return status, unpacked(body, CallUpdate) if path == "/call" else decode(body) if body else None
        return status, json.loads(body)["error"]

    def open(self, token: str = "") -> str:
        status, answer = self.post("/open", {}, token)
        assert status == 200, answer
        return str(answer["client"])

    def call(self, client: str, number: int, token: str = "", **request: Any) -> tuple[int, Any]:
        """Status and end of a call, also of one whose answer comes before its end."""
        given = {"group": "group", "instance": "it", "line": "x.py:1", "eager": True, **request}
        status, answer = self.post("/call", given, token, twinkle_client=client, twinkle_request=str(number))
        if status != 200 or not answer.accepted:
            return status, answer

        def ended() -> list[CallUpdate]:
            body = encode({"after": 0, "seconds": 5.0}).to_bytes()
            _, found = self.request("POST", "/twinkle/1/updates", body, token, twinkle_client=client)
            return [update for _, update in unpacked(found, UpdateAnswer).updates if update.number == number]

        return status, until(ended)[0]

    def value(self, client: str, number: int) -> Any:
        """The value of a call."""
        status, answer = self.post("/read", {"name": f"r{number}"}, twinkle_client=client)
        assert status == 200, answer
        return answer

    def refusal(self, client: str, token: str = "", **request: Any) -> Any:
        """The error of a call that is not made."""
        _, answer = self.call(client, next(self.numbers), token, **request)
        assert answer.unsent and answer.error, (request, answer)
        return decode(answer.error, error_type=own_error_type)

    def build(self, client: str, target: str, **place: str) -> None:
        """Build a component."""
        _, answer = self.call(client, next(self.numbers), kind="create", target=target, **place)
        assert answer.error is None, decode(answer.error, error_type=own_error_type)

    def ask(self, method: str, path: str, body: object = None, token: str = "", **headers: str) -> tuple[int, Any]:
        """Send a value in JSON, or bytes as they are."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        status, text = self.request(method, f"/v1/{path}", data, token, **headers)
        return status, json.loads(text) if text else None

    def new(self, name: str, token: str = "", **keywords: Any) -> str:
        """Build a component by JSON: its class and id."""
        status, answer = self.ask("POST", name, keywords, token)
        assert status == 201, answer
        return f"{name}/{answer['id']}"

    def result(self, path: str, **keywords: Any) -> Any:
        status, answer = self.ask("POST", path, keywords)
        assert status == 200, answer
        return answer["result"]

    def error(self, path: str, body: object = None, token: str = "") -> tuple[int, str, str]:
        status, answer = self.ask("POST", path, body, token)
        return status, answer["error"]["type"], answer["error"]["message"]


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:  # it had sent more than the server has read
        return True


def until(condition: Callable[[], T]) -> T:
    """What a condition returns when it holds; it is looked at again and again, for a while."""
    end = time.monotonic() + 60.0
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found
