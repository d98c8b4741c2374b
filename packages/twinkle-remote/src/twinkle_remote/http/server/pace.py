"""Slow connections are closed: each request arrives, and each answer is taken, at a least pace."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from twinkle_remote.http.server.gathered_writes import GatheredWrites

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

HEAD_SECONDS = 20.0
BODY_SECONDS = 20.0
BYTES_A_SECOND = 64 * 1024
ANSWER_SECONDS = 30.0
_LOOK_SECONDS = 0.5


class PacedProtocol(H11Protocol):
    """A connection that is closed if the head of a request takes long."""

    open_ones: Connections

    place: Any = None  # the address of its other end

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a head."""
        transport = GatheredWrites(transport)
        super().connection_made(transport)
        self.place = _key(transport.get_extra_info("peername"))
        self.open_ones.opened(self.place, transport)

    def data_received(self, data: bytes) -> None:
        """Take bytes; between two requests, these begin the next one's head."""
        self.open_ones.received(self.place)
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.open_ones.closed(self.place)
        super().connection_lost(exc)


class Connections:
    """The open connections of a server, by the address of their other end.

    One timer serves all of them: most heads and answers take less time than a timer of their own.
    """

    def __init__(self) -> None:
        self._transports: dict[Any, Any] = {}
        self._until: dict[Any, float] = {}  # when a connection is closed unless its head, or its answer, is through
        self._busy: set[Any] = set()
        self._timer: asyncio.TimerHandle | None = None

    def protocol(self) -> type[H11Protocol]:
        """The class of its connections."""
        return type("Paced", (PacedProtocol,), {"open_ones": self})

    def opened(self, place: Any, transport: Any) -> None:
        """Called when a connection is made."""
        self._transports[place] = transport
        self.received(place)

    def received(self, place: Any) -> None:
        """Called when bytes arrive."""
        if place not in self._busy and place not in self._until:
            self._wait(place, HEAD_SECONDS)

    def closed(self, place: Any) -> None:
        """Called when a connection is lost."""
        self._busy.discard(place)
        self._until.pop(place, None)
        self._transports.pop(place, None)

    def begin(self, client: Any) -> Any:
        """Begin to answer a request whose head has arrived; returns what `end` and `paced` take."""
        place = _key(client)
        self._until.pop(place, None)
        self._busy.add(place)
        return place

    def end(self, place: Any) -> None:
        """The request was answered."""
        self._busy.discard(place)

    def paced(self, place: Any, send: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
        """A `send` after which the connection is closed if the other end does not read."""

        async def sending(message: Any) -> None:
            self._wait(place, ANSWER_SECONDS)
            try:
                await send(message)
            finally:
                self._until.pop(place, None)

        return sending

    def _wait(self, key: Any, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._until[key] = loop.time() + seconds
        if self._timer is None:
            self._timer = loop.call_later(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        """Close the connections that are past their time."""
        loop = asyncio.get_running_loop()
        late = [key for key, until in self._until.items() if until <= loop.time()]
        for key in late:
            del self._until[key]
            if key in self._transports:
                self._transports[key].abort()
        self._timer = loop.call_later(_LOOK_SECONDS, self._look) if self._until else None


def _key(address: Any) -> Any:
    return None if address is None else tuple(address[:2])
