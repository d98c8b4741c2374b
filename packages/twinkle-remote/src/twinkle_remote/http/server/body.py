"""Reads the body of a request as it arrives: bounded in bytes and in time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from xxhash import xxh3_64, xxh3_64_intdigest

from twinkle_remote.http.server.direct_reading import DIRECT
from twinkle_remote.http.server.pace import BODY_SECONDS, BYTES_A_SECOND
from twinkle_remote.http.wire.compression import InflatedTooLargeError, Inflater
from twinkle_remote.http.wire.frame import FrameReader, read_piece

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from msgspec.msgpack import Decoder

    from twinkle_remote.http.server.direct_reading import DirectBody
    from twinkle_remote.http.wire.frame import Tree
    from twinkle_remote.http.wire.limits import Limits
    from twinkle_remote.http.wire.memory import Buffer

T = TypeVar("T")


class RefusedError(Exception):
    """A request that is answered with an error.

    Args:
        status: HTTP status.
        why: The message for the client.
        kind: A word that the client's code can compare.
    """

    def __init__(self, status: int, why: str, kind: str = "Refused") -> None:
        super().__init__(why)
        self.status = status
        self.why = why
        self.kind = kind


def unknown(what: str, name: str) -> RefusedError:
    """The answer for ids that are unknown and for those of others."""
    return RefusedError(404, f"there is no {what} {name[:80]!a}", "Unknown")


@dataclass(frozen=True)
class Body(Generic[T]):
    """A message that has arrived.

    Attributes:
        tree: Its tree.
        buffers: Its raw buffers.
        digest: Its size and checksum: a request that is sent again has the same.
    """

    tree: Tree[T]
    buffers: list[Buffer]
    digest: tuple[int, int]


async def read_body(
    scope: Any, receive: Callable[[], Awaitable[Any]], limits: Limits, decoder: Decoder[Tree[T]]
) -> Body[T]:
    """Read a message.

    Args:
        scope: The request, with its headers by name in its state, and "is_whole" there if its end has arrived.
        receive: Its parts.
        limits: What is accepted.
        decoder: Reads the tree.

    Raises:
        RefusedError: It is too large or too slow, or the client went away.
        WireFormatError: It is no message.
    """
    if "is_whole" in scope["state"] and b"content-encoding" not in scope["state"]["headers"]:
        part = (await receive()).get("body", b"")
        if len(part) > limits.body:
            raise _too_large(limits.body)
        return Body(*read_piece(part, limits, decoder), (len(part), xxh3_64_intdigest(part)))
    direct: DirectBody | None = scope["state"].get(DIRECT)
    if direct is not None and b"content-encoding" not in scope["state"]["headers"]:
        return await _read_direct(scope, receive, limits, decoder, direct)
    first = b""
    reader: FrameReader[T] | None = None

    def take(part: bytes) -> None:
        nonlocal first, reader
        if reader is None and not first:
            first = part
            return
        if reader is None:
            reader = FrameReader(limits, decoder)
            reader.feed(first)
        reader.feed(part)

    digest = await take_body(scope, receive, limits.body, take)
    tree, buffers = read_piece(first, limits, decoder) if reader is None else reader.finish()
    return Body(tree, buffers, digest)


async def _read_direct(
    scope: Any, receive: Callable[[], Awaitable[Any]], limits: Limits, decoder: Decoder[Tree[T]], direct: DirectBody
) -> Body[T]:
    """Read a large message into the memory of its buffers; see `read_body`."""
    _check_length(scope["state"]["headers"], limits.body)
    until = asyncio.get_running_loop().time() + BODY_SECONDS
    try:
        async with asyncio.timeout_at(until) as limit:
            sink = _MessageSink(
                FrameReader(limits, decoder), lambda size: limit.reschedule(until + size / BYTES_A_SECOND)
            )
            message = await receive()
            if message["type"] != "http.disconnect":
                sink.feed(message.get("body", b""))
            if message["type"] == "http.disconnect" or (message["more_body"] and not await direct.read_into(sink)):
                raise _gone()
    except TimeoutError:
        raise _slow() from None
    tree, buffers = sink.reader.finish()
    return Body(tree, buffers, (sink.size, sink.checksum.intdigest()))


class _MessageSink(Generic[T]):
    """Counts the bytes of a message on their way to its reader.

    Args:
        reader: Reads the message.
        arrived: Called with the bytes of the message so far when more are there.

    Attributes:
        reader: As given.
        size: Bytes of the message so far.
        checksum: Of them.
    """

    def __init__(self, reader: FrameReader[T], arrived: Callable[[int], None]) -> None:
        self.reader = reader
        self.size = 0
        self.checksum = xxh3_64()
        self._arrived = arrived
        self._space = memoryview(b"")

    def feed(self, data: bytes) -> None:
        """Take bytes that lie elsewhere."""
        self._count(data, len(data))
        self.reader.feed(data)

    def space(self) -> memoryview:
        """Memory for the next bytes."""
        self._space = self.reader.space()
        return self._space

    def filled(self, count: int) -> None:
        """So many of its first bytes are there."""
        self._count(self._space[:count], count)
        self.reader.filled(count)

    def _count(self, data: bytes | memoryview, count: int) -> None:
        self.size += count
        self.checksum.update(data)
        self._arrived(self.size)


async def take_body(
    scope: Any, receive: Callable[[], Awaitable[Any]], most: int, take: Callable[[bytes], None]
) -> tuple[int, int]:
    """Pass on the parts of a body as they arrive; returns its size and checksum, as they came.

    Args:
        scope: The request, with its headers by name in its state.
        receive: Its parts.
        most: Bytes of it at most, as they came and as they inflate to.
        take: Takes each part, inflated.

    Raises:
        RefusedError: It is too large or too slow, of an unknown coding, or the client went away.
        WireFormatError: It is compressed, and cannot be read.
    """
    headers = scope["state"]["headers"]
    _check_length(headers, most)
    inflater = _inflater(headers.get(b"content-encoding", b""), most)
    size, checksum = 0, xxh3_64()
    until = asyncio.get_running_loop().time() + BODY_SECONDS
    more = True
    try:
        async with asyncio.timeout_at(until) as limit:
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _gone()
                part = message.get("body", b"")
                more = message.get("more_body", False)
                size += len(part)
                if size > most:
                    raise _too_large(most)
                checksum.update(part)
                if inflater is None:
                    take(part)
                else:
                    await _take_inflated(inflater, part, take)
                if more:
                    limit.reschedule(until + size / BYTES_A_SECOND)
    except TimeoutError:
        raise _slow() from None
    if inflater is not None and size:
        inflater.finish()
    return size, checksum.intdigest()


def _inflater(coding: bytes, most: int) -> Inflater | None:
    if coding.lower() in (b"", b"identity"):
        return None
    if coding.lower() != b"gzip":
        raise RefusedError(415, "a body is plain, or has Content-Encoding: gzip", "Coding")
    return Inflater(most)


async def _take_inflated(inflater: Inflater, part: bytes, take: Callable[[bytes], None]) -> None:
    try:
        for inflated in inflater.parts(part):
            take(inflated)
            await asyncio.sleep(0)  # others have their turn: a small part may inflate to much
    except InflatedTooLargeError as error:
        raise RefusedError(413, str(error), "TooLarge") from None


def _check_length(headers: Mapping[bytes, bytes], most: int) -> None:
    length = headers.get(b"content-length", b"0")
    if len(length) > 20 or int(length) > most:
        raise _too_large(most)


def _gone() -> RefusedError:
    return RefusedError(400, "the client went away", "Gone")


def _slow() -> RefusedError:
    return RefusedError(408, f"the body came slower than {BYTES_A_SECOND} bytes a second", "Slow")


def _too_large(most: int) -> RefusedError:
    return RefusedError(413, f"a body has at most {most} bytes here", "TooLarge")
