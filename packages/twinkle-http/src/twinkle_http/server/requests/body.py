"""Reads the body of a request as it arrives: bounded in bytes and in time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from xxhash import xxh3_64

from twinkle_http.server.requests.timeouts import BODY_SECONDS, BYTES_A_SECOND
from twinkle_http.wire.compression import InflatedTooLargeError, Inflater
from twinkle_http.wire.errors import WireFormatError
from twinkle_http.wire.frame import FrameReader, read_piece
from twinkle_http.wire.in_head import HEADER, from_header

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from msgspec.msgpack import Decoder

    from twinkle_http.wire.frame import Tree
    from twinkle_http.wire.limits import Limits
    from twinkle_http.wire.memory import Buffer

T = TypeVar("T")
_IN_HEAD = HEADER.encode("ascii")


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
        scope: The request, with its headers by name in its state.
        receive: Its parts.
        limits: What is accepted.
        decoder: Reads the tree.

    Raises:
        RefusedError: It is too large or too slow, or the client went away.
        WireFormatError: It is no message.
    """
    headers = scope["state"]["headers"]
    whole = headers.get(_IN_HEAD)
    if whole is not None:
        return _in_head(from_header(whole), headers, limits, decoder)
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


def _in_head(message: bytes, headers: Mapping[bytes, bytes], limits: Limits, decoder: Decoder[Tree[T]]) -> Body[T]:
    if headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers:
        raise WireFormatError("a request has its message in the head or in the body, not in both")
    if len(message) > limits.body:
        raise _too_large(limits.body)
    tree, buffers = read_piece(message, limits, decoder)
    return Body(tree, buffers, (len(message), xxh3_64(message).intdigest()))


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
    return RefusedError(408, f"the body arrived slower than {BYTES_A_SECOND} bytes a second", "Slow")


def _too_large(most: int) -> RefusedError:
    return RefusedError(413, f"a body has at most {most} bytes here", "TooLarge")
