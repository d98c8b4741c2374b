"""Slow connections are closed: each request arrives, and each answer is taken, at a least pace."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

HEAD_SECONDS = 20.0
BODY_SECONDS = 20.0
BYTES_A_SECOND = 64 * 1024
ANSWER_SECONDS = 30.0


class PacedProtocol(H11Protocol):
    """A connection that is closed if the head of a request takes long."""

    open_ones: Connections

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a head."""
        super().connection_made(transport)
        self.open_ones.opened(transport)

    def data_received(self, data: bytes) -> None:
        """Take bytes; between two requests, these begin the next one's head."""
        self.open_ones.received(self.transport)
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.open_ones.closed(self.transport)
        super().connection_lost(exc)


class Connections:
    """The open connections of a server, by the address of their other end."""

    def __init__(self) -> None:
        self._heads: dict[Any, asyncio.TimerHandle] = {}
        self._busy: set[Any] = set()

    def protocol(self) -> type[H11Protocol]:
        """The class of its connections."""
        return type("Paced", (PacedProtocol,), {"open_ones": self})

    def opened(self, transport: Any) -> None:
        """Called when a connection is made."""
        self.received(transport)

    def received(self, transport: Any) -> None:
        """Called when bytes arrive."""
        key = _key(transport.get_extra_info("peername"))
        if key not in self._busy and key not in self._heads:
            self._heads[key] = asyncio.get_running_loop().call_later(HEAD_SECONDS, transport.abort)

    def closed(self, transport: Any) -> None:
        """Called when a connection is lost."""
        key = _key(transport.get_extra_info("peername"))
        self._busy.discard(key)
        self._stop(key)

    @contextlib.contextmanager
    def request(self, client: Any) -> Iterator[None]:
        """The time in which a request is answered, whose head has arrived."""
        key = _key(client)
        self._stop(key)
        self._busy.add(key)
        try:
            yield
        finally:
            self._busy.discard(key)

    def paced(self, send: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
        """A `send` that gives up if the other end does not read."""

        async def sending(message: Any) -> None:
            async with asyncio.timeout(ANSWER_SECONDS):
                await send(message)

        return sending

    def _stop(self, key: Any) -> None:
        timer = self._heads.pop(key, None)
        if timer is not None:
            timer.cancel()


def _key(address: Any) -> Any:
    return None if address is None else tuple(address[:2])
