"""Slow connections are closed: each request arrives, and each answer is taken, at a least pace."""

from __future__ import annotations

import asyncio
from typing import Any

from twinkle_remote.http.server.direct_reading import DirectReading
from twinkle_remote.http.server.gathered_writes import GatheredWrites

HEAD_SECONDS = 20.0
BODY_SECONDS = 20.0
BYTES_A_SECOND = 64 * 1024
ANSWER_SECONDS = 30.0
_LOOK_SECONDS = 0.5
_MOST_HEAD_BYTES = 64 * 1024
_MOST_WAITING = 16  # requests of one connection that are sent before the answer to the first


class PacedProtocol(DirectReading):
    """A connection that is closed if the head of a request is long, or takes long.

    The methods `on_*` are what the parser calls; where one raises, the answer is 400, and the connection is closed.
    """

    open_ones: Connections

    place: Any = None  # the address of its other end
    _gathered: GatheredWrites
    _unread = 0  # bytes that have made up neither a head nor a part of a body yet; the parser keeps them

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a head."""
        self._gathered = GatheredWrites(transport)
        super().connection_made(self._gathered)
        self.place = _key(transport.get_extra_info("peername"))
        self.open_ones.opened(self.place, self._gathered)

    def pause_writing(self) -> None:
        """The other end reads slower than this one writes."""
        self.open_ones.writes(self.place)
        super().pause_writing()

    def resume_writing(self) -> None:
        """The other end has read."""
        self.open_ones.has_read(self.place)
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """Take bytes; between two requests, these begin the next one's head."""
        self.open_ones.received(self.place)
        super().data_received(data)

    def parse(self, data: bytes) -> None:
        """Have the parser take bytes."""
        self._unread += len(data)
        super().parse(data)
        if self._unread > _MOST_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The head of a request has at most {_MOST_HEAD_BYTES} bytes here.")

    def on_headers_complete(self) -> None:
        """The head is there.

        Raises:
            ValueError: It names another host in its first line, or many requests wait for their answers.
        """
        if self.url[:1] != b"/":
            raise ValueError("the target of a request is a path here")
        if len(self.pipeline) >= _MOST_WAITING:
            raise ValueError(f"a connection has at most {_MOST_WAITING} requests that wait")
        if len(self.url) + sum([len(name) + len(value) + 4 for name, value in self.headers]) > _MOST_HEAD_BYTES:
            raise ValueError(f"the head of a request has at most {_MOST_HEAD_BYTES} bytes here")
        self._unread = 0
        super().on_headers_complete()
        self.headers = []  # those behind the body are not the request's
        if self.parser.should_upgrade():  # to no protocol of this server; the parser drops what follows
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """A part of a body."""
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The end of a request."""
        self._unread = 0
        self.scope["state"]["is_whole"] = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Send the end of an answer."""
        self._gathered.flush()
        super().on_response_complete()

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
        self._heads: dict[Any, float] = {}  # when a connection is closed unless the head of its request is there
        self._answers: dict[Any, float] = {}  # likewise, unless the other end has read
        self._unsent: dict[Any, int] = {}  # bytes that each of these had not read when its time began
        self._busy: set[Any] = set()
        self._timer: asyncio.TimerHandle | None = None

    def protocol(self) -> type[PacedProtocol]:
        """The class of its connections."""
        return type("Paced", (PacedProtocol,), {"open_ones": self})

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
        """Called when more was written than the other end has read: it is closed if it goes on like that."""
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
