"""A key-value store that the controller serves to the processes of a sync, and that torch's process groups can use.

torch's own TCPStore (2.13, with libuv and without) calls getnameinfo for the name of both ends of every connection,
which takes seconds where no name server answers; it also has no secret, so any process that reaches its port can write.
This store looks up no names, and refuses a client without the session's secret.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
import struct
import sys
import weakref
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from enum import IntEnum
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.distributed.distributed_c10d import Store

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Sequence

CONNECT_SECONDS = 30.0
DEFAULT_WAIT = timedelta(seconds=300)
SECRET_BYTES = 32
_HEAD = struct.Struct("!BIII")
_MAX_BYTES = 1 << 26


class _Act(IntEnum):
    SET = 1
    GET = 2
    CHECK = 3
    COMPARE_SET = 4
    ADD = 5
    WAIT = 6
    DELETE = 7
    APPEND = 8
    PUT = 9


_YES, _NO = b"\x01", b"\x00"


class StoreAddress(NamedTuple):
    """Address of a store, and the secret that its clients must send."""

    host: str
    port: int
    secret: str


class _Request(NamedTuple):
    act: _Act
    parts: tuple[bytes, bytes, bytes]


class StoreServer:
    """The server of the store: one thread of the controller's process.

    Args:
        host: Address to listen on; a free port is taken.
    """

    def __init__(self, host: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, 0), family=family, backlog=1024)
        self.address = StoreAddress(host, int(listener.getsockname()[1]), secrets.token_hex(SECRET_BYTES // 2))
        self._values: dict[bytes, bytes] = {}
        self._changed = asyncio.Condition()
        self._awaited: Counter[bytes] = Counter()
        self._over = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._run, args=(listener,), name="twinkle-store", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the server; waiting clients get an error."""
        if self._thread.is_alive():
            with suppress(RuntimeError):  # its loop is closed: it is ending already
                self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join(5.0)

    def _run(self, listener: socket.socket) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._main(listener))

    async def _main(self, listener: socket.socket) -> None:
        server = await asyncio.start_server(self._serve, sock=listener)
        await self._over.wait()
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        following: asyncio.Task[_Request | None] | None = None
        try:
            send_again_soon(writer.get_extra_info("socket"))
            secret = await reader.readexactly(SECRET_BYTES)
            if not hmac.compare_digest(secret, self.address.secret.encode()):
                return
            while True:
                request = await (following or _read(reader))
                following = None
                if request is None:
                    return
                answering = self._act(request.act, *request.parts)
                if request.act is _Act.WAIT:
                    following = asyncio.create_task(_read(reader))
                    answer = await _unless_left(answering, following)
                else:
                    answer = await answering
                if answer is None:
                    return
                if request.act is _Act.PUT:
                    continue
                writer.write(struct.pack("!I", len(answer)) + answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError, ValueError):
            return  # the client has left or is a stranger, or the server is closing
        finally:
            if following is not None:
                following.cancel()
            writer.close()

    async def _act(self, act: _Act, key: bytes, value: bytes, extra: bytes) -> bytes:
        values = self._values
        match act:
            case _Act.GET:
                return values.get(key, b"")
            case _Act.CHECK:
                return _YES if all(name in values for name in key.split(b"\0")) else _NO
            case _Act.WAIT:
                names = key.split(b"\0")
                return _YES if await self._wait(names, float(value)) else _NO
            case _Act.DELETE:
                return _YES if values.pop(key, None) is not None else _NO
            case _Act.SET | _Act.PUT:
                values[key] = value
            case _Act.APPEND:
                values[key] = values.get(key, b"") + value
            case _Act.ADD:
                values[key] = str(int(values.get(key, b"0")) + int(value)).encode()
            case _Act.COMPARE_SET:
                if values.get(key, b"") == value:
                    values[key] = extra
        if key in self._awaited:  # signs of life are written all the time, and nobody waits for them
            async with self._changed:
                self._changed.notify_all()
        return values.get(key, b"")

    async def _wait(self, names: Sequence[bytes], seconds: float) -> bool:
        self._awaited.update(names)
        try:
            async with self._changed, asyncio.timeout(seconds):
                await self._changed.wait_for(lambda: all(name in self._values for name in names))
        except TimeoutError:
            return False
        finally:
            self._awaited -= Counter(names)
        return True


async def _read(reader: asyncio.StreamReader) -> _Request | None:
    """The next request of a client; None if it has left or is a stranger."""
    try:
        act, *lengths = _HEAD.unpack(await reader.readexactly(_HEAD.size))
        if sum(lengths) > _MAX_BYTES:
            return None
        key, value, extra = [await reader.readexactly(length) for length in lengths]
        return _Request(_Act(act), (key, value, extra))
    except (asyncio.IncompleteReadError, ConnectionError, ValueError):
        return None


async def _unless_left(answering: Coroutine[Any, Any, bytes], following: asyncio.Task[_Request | None]) -> bytes | None:
    """An answer that comes late, or None if its client leaves meanwhile: its next request never comes then."""
    answer = asyncio.create_task(answering)
    try:
        await asyncio.wait([answer, following], return_when=asyncio.FIRST_COMPLETED)
        if following.done() and following.result() is None:
            return None
        return await answer
    finally:
        answer.cancel()


class StoreClient(Store):
    """One connection to a server, which runs one call at a time: a thread that must not wait has its own connection.

    Args:
        at: Of the server.

    Raises:
        OSError: If the server cannot be reached.
    """

    def __init__(self, at: StoreAddress) -> None:
        super().__init__()
        self._at = at
        self._lock = Lock()
        self._default = DEFAULT_WAIT
        self._socket = socket.create_connection((at.host, at.port), timeout=CONNECT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        send_again_soon(self._socket)
        self._socket.settimeout(None)
        self._socket.sendall(at.secret.encode())
        weakref.finalize(self, self._socket.close)

    def close(self) -> None:
        """Leave the server."""
        self._socket.close()

    def set(self, key: str, value: str | bytes) -> None:
        """Store a value."""
        self._ask(_Act.SET, key, value)

    def put(self, key: str, value: str | bytes) -> None:
        """Store a value, without a wait for the server."""
        self._ask(_Act.PUT, key, value)

    def get(self, key: str) -> bytes:
        """A value; waits until it is there."""
        self.wait([key])
        return self._ask(_Act.GET, key)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are there."""
        return self._ask(_Act.CHECK, "\0".join(keys)) == _YES

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Replace the expected value, "" for none; returns the value that is there afterwards."""
        return self._ask(_Act.COMPARE_SET, key, expected, desired)

    def add(self, key: str, amount: int) -> int:
        """Add to a number, which starts at 0; returns the sum."""
        return int(self._ask(_Act.ADD, key, str(amount)))

    def append(self, key: str, value: str | bytes) -> None:
        """Append to a value."""
        self._ask(_Act.APPEND, key, value)

    def delete_key(self, key: str) -> bool:
        """Remove a value; returns whether there was one."""
        return self._ask(_Act.DELETE, key) == _YES

    deleteKey = delete_key  # noqa: N815 - torch's C++ side calls this name

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Several values; waits until they are there."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Store several values."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        """Whether the store has `append`, `multi_get` and `multi_set`; always True."""
        return True

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are there.

        Raises:
            RuntimeError: If a key is missing after the timeout.
        """
        seconds = (timeout or self._default).total_seconds()
        if not self.arrives(keys, seconds):
            raise RuntimeError(f"the store did not get {', '.join(keys)} within {seconds:g} s")

    def arrives(self, keys: Iterable[str], seconds: float) -> bool:
        """Wait up to `seconds` until all keys are there; returns whether they are."""
        return self._ask(_Act.WAIT, "\0".join(keys), repr(seconds)) == _YES

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the default timeout of `get` and `wait`."""
        self._default = timeout

    def _ask(self, act: _Act, key: str, value: str | bytes = b"", extra: str | bytes = b"") -> bytes:
        parts = [part if isinstance(part, bytes) else part.encode() for part in (key, value, extra)]
        with self._lock:
            try:
                self._socket.sendall(_HEAD.pack(act, *map(len, parts)) + b"".join(parts))
                if act is _Act.PUT:
                    return b""
                (length,) = struct.unpack("!I", self._receive(4))
                return self._receive(length)
            except OSError as error:
                raise RuntimeError(f"the store at {self._at.host}:{self._at.port} is gone: {error}") from error

    def _receive(self, length: int) -> bytes:
        chunks = bytearray()
        while len(chunks) < length:
            chunk = self._socket.recv(length - len(chunks))
            if not chunk:
                raise ConnectionError("connection closed")
            chunks += chunk
        return bytes(chunks)


_TCP_RTO_MAX_MS = 44  # of Linux from 6.15 on; Python has no name for it
_LONGEST_MS = 1000


def send_again_soon(connection: socket.socket) -> bool:
    """Have a connection send lost packets again after a second at most, where the system can.

    A link that was down for some seconds is used again at once then, and signs of life that were lost arrive in time.

    Args:
        connection: A connection by TCP.

    Returns:
        Whether the system can.
    """
    if sys.platform != "linux":
        return False
    try:
        connection.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, _LONGEST_MS)
    except OSError:  # an older kernel
        return False
    return True
