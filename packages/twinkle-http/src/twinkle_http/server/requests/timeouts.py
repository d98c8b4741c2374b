"""Slow connections are closed: the head of each request arrives, and each answer is taken, in bounded time."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 20.0
BODY_SECONDS = 20.0
BYTES_A_SECOND = 64 * 1024
ANSWER_SECONDS = 30.0
_LOOK_SECONDS = 0.5


class TimedConnection(asyncio.Protocol):
    """A connection before uvicorn's, to which it passes on what the event loop calls.

    Args:
        inner: uvicorn's.
        connections: Gets the events of this connection.
    """

    def __init__(self, inner: asyncio.Protocol, connections: Connections) -> None:
        self._inner = inner
        self._connections = connections
        self._place: Any = None  # the address of its other end

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a head."""
        self._place = _key(transport.get_extra_info("peername"))
        self._connections.opened(self._place, transport)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Take bytes; between two requests, these begin the next one's head."""
        self._connections.received(self._place)
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """The other end sends no more."""
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        """The other end reads slower than this one writes."""
        self._connections.writes(self._place)
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """The other end has read."""
        self._connections.has_read(self._place)
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._connections.closed(self._place)
        self._inner.connection_lost(exc)


class Connections:
    """The open connections of a server, by the address of their other end.

    One timer serves all of them: most heads and answers take less time than a timer of their own.
    """

    def __init__(self) -> None:
        self._transports: dict[Any, Any] = {}
        self._heads: dict[Any, float] = {}  # when a connection is closed unless the head of its request is there
        self._answers: dict[Any, float] = {}  # likewise, unless the other end has read
        self._unsent: dict[Any, int] = {}  # bytes that each of these had not read when its time began
        self._busy: set[Any] = set()
        self._timer: asyncio.TimerHandle | None = None

    def protocol(self) -> type[asyncio.Protocol]:
        """The class of its connections, for `uvicorn.Config(http=...)`."""
        connections = self

        class Timed(TimedConnection):
            def __init__(self, **given: Any) -> None:
                super().__init__(H11Protocol(**given), connections)

        return Timed

    def opened(self, place: Any, transport: Any) -> None:
        """Called when a connection is made."""
        self._transports[place] = transport
        self.received(place)

    def received(self, place: Any) -> None:
        """Called when bytes arrive."""
        if place not in self._busy and place not in self._heads:
            self._wait(self._heads, place, HEAD_SECONDS)

    def closed(self, place: Any) -> None:
        """Called when a connection is lost."""
        self._busy.discard(place)
        self._heads.pop(place, None)
        self.has_read(place)
        self._transports.pop(place, None)

    def begin(self, client: Any) -> Any:
        """Begin to answer a request whose head has arrived; returns what `end` takes."""
        place = _key(client)
        self._heads.pop(place, None)
        self._busy.add(place)
        return place

    def end(self, place: Any) -> None:
        """The request was answered."""
        self._busy.discard(place)

    def writes(self, place: Any) -> None:
        """Called when more was written than the other end has read; the connection is closed if this lasts."""
        self._unsent[place] = self._transports[place].get_write_buffer_size()
        self._wait(self._answers, place, ANSWER_SECONDS)

    def has_read(self, place: Any) -> None:
        """Called when it has read."""
        self._answers.pop(place, None)
        self._unsent.pop(place, None)

    def _wait(self, limits: dict[Any, float], place: Any, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        limits[place] = loop.time() + seconds
        if self._timer is None:
            self._timer = loop.call_later(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        """Close the connections that are past their time."""
        loop = asyncio.get_running_loop()
        for place in [place for place, until in self._heads.items() if until <= loop.time()]:
            self._abort(place)
        for place in [place for place, until in self._answers.items() if until <= loop.time()]:
            if self._has_read_enough(place):
                self.writes(place)
            else:
                self._abort(place)
        waits = self._heads or self._answers
        self._timer = loop.call_later(_LOOK_SECONDS, self._look) if waits else None

    def _has_read_enough(self, place: Any) -> bool:
        """Whether the other end has read at the least pace since its time began: then it has as much again."""
        unsent = self._transports[place].get_write_buffer_size()
        return bool(self._unsent[place] - unsent >= ANSWER_SECONDS * BYTES_A_SECOND)

    def _abort(self, place: Any) -> None:
        self._heads.pop(place, None)
        self.has_read(place)
        if place in self._transports:
            self._transports[place].abort()


def _key(address: Any) -> Any:
    return None if address is None else tuple(address[:2])
