"""Large bodies, read from the socket into the memory in which they stay, past the parser of requests."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from httptools import HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    from asyncio import Future

DIRECT = "direct_body"  # its name in the state of a request
_LEAST_BYTES = 256 * 1024
_READ_BYTES = 256 * 1024
_FRAMING = (b"content-length", b"transfer-encoding")


class BodySink(Protocol):
    """Where the bytes of a body go."""

    def space(self) -> memoryview:
        """Memory for the next bytes."""

    def filled(self, count: int) -> None:
        """So many of its first bytes are there."""


class DirectBody:
    """The rest of a body whose length is known.

    Args:
        connection: Its connection.
        length: Bytes of the whole body.

    Attributes:
        left: Bytes that have not arrived yet.
    """

    def __init__(self, connection: DirectReading, length: int) -> None:
        self.left = length
        self._connection = connection
        self._sink: BodySink | None = None
        self._end: Future[bool] | None = None
        self._is_whole = False

    async def read_into(self, sink: BodySink) -> bool:
        """Have the connection read the rest of the body; all that `receive` had is taken, and it is not asked again.

        If this raises, the rest stays unread, and the connection closes behind the answer.

        Args:
            sink: Takes the bytes; an error of its is raised here.

        Returns:
            False if the connection is lost before the body's end.
        """
        self._end = asyncio.get_running_loop().create_future()
        self._sink = sink
        self._connection.direct = self
        self._connection.flow.resume_reading()
        try:
            return await self._end
        finally:
            if not self._is_whole:
                self._sink = None
                self._connection.give_up()

    def space(self) -> memoryview:
        """Memory for the next bytes: at least one, and none behind the body."""
        if self._sink is not None:
            try:
                return self._sink.space()[: self.left]
            except Exception as error:  # it is for who waits
                self._fail(error)
        return self._connection.scratch

    def filled(self, count: int) -> bool:
        """So many bytes are there; returns whether the body is whole."""
        if self._sink is None:  # nobody wants them
            return False
        self.left -= count
        try:
            self._sink.filled(count)
        except Exception as error:  # it is for who waits
            self._fail(error)
            return False
        return not self.left

    def end(self, is_whole: bool) -> None:
        """It is whole, or the connection is lost."""
        self._sink, self._is_whole = None, is_whole
        if self._end is not None and not self._end.done():
            self._end.set_result(is_whole)

    def _fail(self, error: Exception) -> None:
        self._sink = None
        if self._end is not None and not self._end.done():
            self._end.set_exception(error)


class DirectReading(HttpToolsProtocol, asyncio.BufferedProtocol):
    """A connection whose application may say where the rest of a large body goes.

    The body of a request is direct if its head says its length, and nothing else about its framing: then the state of
    the request has a `DirectBody`.

    Attributes:
        direct: The body that is read directly, if one is.
        scratch: Where bytes for the parser are read.
    """

    direct: DirectBody | None = None
    scratch = memoryview(bytearray(_READ_BYTES))  # of all connections: what is in it is taken before another one reads
    _body: DirectBody | None = None  # the body that the parser reads

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the transport puts the next bytes."""
        return self.scratch if self.direct is None else self.direct.space()

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes are there."""
        if self.direct is None:
            self.data_received(bytes(self.scratch[:nbytes]))
        else:
            self._filled(self.direct, nbytes)

    def data_received(self, data: bytes) -> None:
        """Take bytes; uvloop's transports have no others, and what it takes of a direct body is copied once."""
        left = memoryview(data)
        while self.direct is not None and left:
            space = self.direct.space()
            count = min(len(space), len(left))
            space[:count] = left[:count]
            left = left[count:]
            self._filled(self.direct, count)
        if left:
            self.parse(data if len(left) == len(data) else bytes(left))

    def parse(self, data: bytes) -> None:
        """Have the parser take bytes."""
        super().data_received(data)

    def _filled(self, body: DirectBody, count: int) -> None:
        if body.filled(count):
            self.direct = None
            self._begin_parser()
            self.on_message_complete()
            body.end(True)

    def _begin_parser(self) -> None:
        """Have a parser that waits for a request: the one before waits for the body that it has not seen."""
        self.parser = HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn sets it

    def on_headers_complete(self) -> None:
        """The head of a request is there."""
        super().on_headers_complete()
        self._body = None
        framing = [(name, value) for name, value in self.scope["headers"] if name in _FRAMING]
        if len(framing) == 1 and framing[0][0] == b"content-length" and not self.parser.should_upgrade():
            length = int(framing[0][1])  # the parser has read it before
            if length >= _LEAST_BYTES:
                state: Any = self.scope["state"]
                self._body = state[DIRECT] = DirectBody(self, length)

    def on_body(self, body: bytes) -> None:
        """A part of a body for the application to receive."""
        if self._body is not None:
            self._body.left -= len(body)
        super().on_body(body)

    def give_up(self) -> None:
        """Read no more of a body that nobody wants; the connection closes behind the answer."""
        self.flow.pause_reading()
        self.cycle.keep_alive = False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is lost."""
        if self.direct is not None:
            self.direct.end(False)
        super().connection_lost(exc)
