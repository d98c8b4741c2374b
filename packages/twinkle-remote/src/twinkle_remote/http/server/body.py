"""Reads the body of a request as it arrives: bounded in bytes and in time."""

from __future__ import annotations

import asyncio
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twinkle_remote.http.server.pace import BODY_SECONDS, BYTES_A_SECOND
from twinkle_remote.http.wire.frame import FrameReader

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from twinkle_remote.http.wire.frame import Tree
    from twinkle_remote.http.wire.limits import Limits


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


@dataclass(frozen=True, slots=True)
class Body:
    """A message that has arrived.

    Attributes:
        tree: Its tree.
        buffers: Its raw buffers.
        digest: Its size and checksum: a request that is sent again has the same.
    """

    tree: Tree
    buffers: list[bytearray]
    digest: tuple[int, int]


async def read_body(scope: Any, receive: Callable[[], Awaitable[Any]], limits: Limits) -> Body:
    """Read a message.

    Raises:
        RefusedError: It is too large or too slow, or the client went away.
        WireFormatError: It is no message.
    """
    length = dict(scope["headers"]).get(b"content-length", b"0")
    if len(length) > 20 or int(length) > limits.body:
        raise RefusedError(413, f"a body has at most {limits.body} bytes here", "TooLarge")
    reader = FrameReader(limits)
    size = checksum = 0
    until = asyncio.get_running_loop().time() + BODY_SECONDS
    more = True
    try:
        async with asyncio.timeout_at(until) as limit:
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise RefusedError(400, "the client went away", "Gone")
                part = message.get("body", b"")
                more = message.get("more_body", False)
                size += len(part)
                if size > limits.body:
                    raise RefusedError(413, f"a body has at most {limits.body} bytes here", "TooLarge")
                checksum = zlib.crc32(part, checksum)
                reader.feed(part)
                if more:
                    limit.reschedule(until + size / BYTES_A_SECOND)
    except TimeoutError:
        raise RefusedError(408, f"the body came slower than {BYTES_A_SECOND} bytes a second", "Slow") from None
    tree, buffers = reader.finish()
    return Body(tree, buffers, (size, checksum))
