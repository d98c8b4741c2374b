"""A client of a server's over sockets of its own, for tests of what travels."""

from __future__ import annotations

import socket
import textwrap
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from tests.http.place import Place

from twinkle_http.messages import CALL_UPDATE, unpacked
from twinkle_http.wire import decode, encode
from twinkle_remote.rows import TYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

TOKEN = "a token of these tests"
_SERVER = """
import asyncio, os, sys
import numpy as np
from pathlib import Path
from twinkle_mesh import DeviceGroup
from twinkle_remote import remote_class, remote_function, serve, session
from twinkle_http.server import serve as ending
ending.LAST_UPDATE_SECONDS = 0.2  # at its end, for clients that have not read: those of these tests never do
{settings}

@remote_class()
class Served:
    @remote_function(dispatch="all", collect="first")
    def ready(self):
        return True

    @remote_function(dispatch="all", collect="first")
    def of(self, *arguments):
        return {returned}

with session("threads", groups=[DeviceGroup("group", 1, "CPU")]):
    with serve([Served], port=0, token={token!r}, max_body=1 << 30) as server:
        Path(sys.argv[1]).write_text(str(os.getpid()))
        print(server.address, flush=True)
        sys.stdin.read()
"""


class Wire(Place):
    """Requests of one client over sockets of its own."""

    def __init__(self, address: str, process: int) -> None:
        super().__init__(address)
        with self.connected() as connection:
            connection.sendall(self.head("open", len(encode({}, TYPES).to_bytes())) + encode({}, TYPES).to_bytes())
            self.client = decode([self.answer(connection)[1]], TYPES)["client"]
        self.numbers = iter(range(1, 10_000))
        self.process = process

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.process}/statm").read_text().split()[1]) * 4096

    def connected(self) -> socket.socket:
        connection = socket.create_connection(self.place, timeout=30.0)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def head(self, path: str, length: int, *lines: str) -> bytes:
        given = [f"POST /twinkle/1/{path} HTTP/1.1", f"host: {self.host}"]
        given += [f"authorization: Bearer {TOKEN}", f"content-length: {length}", *lines, "", ""]
        return "\r\n".join(given).encode()

    def call(self, message: bytes, number: int | None = None, *lines: str, length: int | None = None) -> bytes:
        number = next(self.numbers) if number is None else number
        own = (f"twinkle-client: {self.client}", f"twinkle-request: {number}", *lines)
        return self.head("call", len(message) if length is None else length, *own) + message

    def reading(self, name: str) -> bytes:
        """The request for a result."""
        asked = encode({"name": name}, TYPES).to_bytes()
        return self.head("read", len(asked), f"twinkle-client: {self.client}") + asked

    def answer(self, connection: socket.socket) -> tuple[int, bytes]:
        """Status and body of an answer; status 0 if the connection was closed without one."""
        got = b""
        while b"\r\n\r\n" not in got:
            part = connection.recv(1)  # nothing of the next answer
            if not part:
                return 0, got
            got += part
        lines = got.decode().lower().split("\r\n")
        length = next((int(line.partition(":")[2]) for line in lines if line.startswith("content-length:")), 0)
        body = b""
        while len(body) < length:
            body += connection.recv(length - len(body))
        return int(lines[0].split()[1]), body

    def build(self, cls: str) -> None:
        """Build the component whose methods `message` calls."""
        with self.connected() as connection:
            connection.sendall(self.call(message(kind="create", target=cls)))
            assert self.answer(connection)[0] == 200
            until = time.monotonic() + 30.0
            refused = {"message": "not tried"}
            while refused and time.monotonic() < until:
                time.sleep(0.01)
                connection.sendall(self.call(message(target="ready")))
                _, body = self.answer(connection)
                refused = msgspec.to_builtins(unpacked(body, CALL_UPDATE)).get("refused")
            assert not refused, refused

    def is_closed(self, connection: socket.socket) -> bool:
        try:
            return connection.recv(1) == b""
        except ConnectionResetError:  # it had sent more than the server has read
            return True

    def value(self, connection: socket.socket) -> Any:
        """What the call has returned whose answer comes next."""
        status, body = self.answer(connection)
        assert status == 200, body
        update = msgspec.to_builtins(unpacked(body, CALL_UPDATE))
        with self.connected() as other:
            other.sendall(self.reading(update["name"]))
            status, body = self.answer(other)
        assert status == 200, body
        return decode([body], TYPES)


@contextmanager
def served(
    serving: Callable[..., AbstractContextManager[str]], folder: Path, returned: str, settings: str, *arguments: str
) -> Iterator[Wire]:
    """A client of a server whose component's method `of` returns the value of an expression of its `arguments`.

    Args:
        serving: The fixture.
        folder: An own folder.
        returned: The expression.
        settings: Lines that the server runs first.
        arguments: Its arguments, from `sys.argv[2]` on.
    """
    process = folder / "process"
    program = _SERVER.format(settings=textwrap.dedent(settings), returned=returned, token=TOKEN)
    with serving(program, str(process), *arguments) as address:
        wire = Wire(address, int(process.read_text()))
        wire.build("__main__.Served")
        yield wire


def message(*arrays: Any, kind: str = "method", target: str = "of") -> bytes:
    """A call of the component `it`."""
    given = {"kind": kind, "group": "group", "instance": "it", "target": target, "args": list(arrays), "kwargs": {}}
    return encode(given, TYPES).to_bytes()
