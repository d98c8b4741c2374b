"""Reads small answers from a socket by httptools (llhttp): Python's own reader takes several times as long."""

from __future__ import annotations

from http.client import HTTPException, IncompleteRead, RemoteDisconnected
from typing import TYPE_CHECKING

from httptools import HttpParserError, HttpResponseParser

if TYPE_CHECKING:
    import socket

_READ_BYTES = 64 * 1024


class AnswerReader:
    """The answers of one connection, one after the other, and whether it can be used again.

    The methods `on_*` are what the parser calls.

    Args:
        sock: Where the answers come from; its timeout is the limit of each wait.

    Attributes:
        status: Status of the latest answer; 0 before it has one.
        headers: Its headers by their names in lower case.
        keeps: The connection is kept by the server, and nothing came behind the answer.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._parser = HttpResponseParser(self)
        self._begin()

    def _begin(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.keeps = False
        self._parts: list[bytes] = []
        self._ended = False
        self._more = False

    def read(self) -> bytes:
        """The body of the next answer, when it is whole; if this raises, the connection cannot be used again.

        Raises:
            OSError: The connection is lost, or silent for too long.
            HTTPException: The answer is cut off, or is none.
        """
        self._begin()
        while not self._ended:
            data = self._sock.recv(_READ_BYTES)
            if not data:
                self._cut_off()
                break
            try:
                self._parser.feed_data(data)
            except HttpParserError as error:
                if not self._ended:
                    raise HTTPException(f"the answer is not HTTP: {error}") from error
                self._more = True
        self.keeps = self.keeps and not self._more
        return b"".join(self._parts)

    def _cut_off(self) -> None:
        """The server has closed the connection, which ends a body without a length."""
        if not self.status:
            raise RemoteDisconnected("the server closed the connection without an answer")
        if "content-length" in self.headers or "transfer-encoding" in self.headers:
            raise IncompleteRead(b"".join(self._parts))

    def on_message_begin(self) -> None:
        """An answer begins; a second one was not asked for."""
        self._more = self._ended

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        if not self._ended:
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """All headers are there."""
        if not self._ended:
            self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        if not self._ended:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        """The end of an answer, or of an interim one (status 1xx), which another follows."""
        if self._ended:
            return
        if 100 <= self.status < 200:
            self.status = 0
            self.headers.clear()
            return
        self.keeps = self._parser.should_keep_alive()
        self._ended = True
