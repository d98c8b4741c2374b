"""Small requests: each is one write, on a connection that is kept for the next."""

from __future__ import annotations

import http.client
import time
from typing import TYPE_CHECKING, Any

from urllib3.connection import HTTPConnection, HTTPSConnection

from twinkle_remote.http.client.answer_reader import AnswerReader

if TYPE_CHECKING:
    from collections.abc import Mapping

_KEPT = 32  # connections
_MOST_HEADS = 64
_LOOK_SECONDS = 1.0  # without a request, after which the server may have closed a connection

Headers = tuple[tuple[str, str], ...]


class _Request(http.client.HTTPConnection):
    """The head of a request in the making."""

    def __init__(self, host: str, port: int, default_port: int) -> None:
        self.default_port = default_port  # the header `Host` leaves it out
        super().__init__(host, port)
        self._written: list[Any] = []

    def send(self, data: Any) -> None:
        """Collect what `http.client` sends."""
        self._written.append(data)

    def head(self, path: str, headers: Headers) -> bytes:
        """The head of a POST without its last, empty line."""
        self.putrequest("POST", path, skip_accept_encoding=True)
        for name, value in headers:
            self.putheader(name, value)
        self.endheaders()
        return b"".join(self._written).removesuffix(b"\r\n")


class SmallRequests:
    """Connections to one server for requests whose bodies and answers are small.

    Head and body of a request are one write, so that the server reads once.

    Args:
        host: The server.
        port: Its port.
        options: Of TLS: the certificates to trust; None for plain HTTP.
    """

    def __init__(self, host: str, port: int, options: Mapping[str, Any] | None) -> None:
        self._place = host, port
        self._options = options
        self._heads: dict[tuple[str, Headers], bytes] = {}  # most requests have the head of one before
        self._idle: list[tuple[HTTPConnection, AnswerReader, float]] = []  # since when
        self._closed = False

    def post(
        self,
        path: str,
        body: bytes,
        headers: Headers,
        connect_seconds: float,
        seconds: float,
        number: int | None = None,
    ) -> tuple[int, dict[str, str], bytes]:
        """Send a request; returns the status, the headers and the body of the answer.

        Args:
            path: The path.
            body: The body.
            headers: The headers, apart from those of its framing and its number.
            connect_seconds: Seconds for a new connection.
            seconds: Seconds without a byte of the answer, after which it is lost.
            number: Its number, for the header `twinkle-request`.

        Raises:
            OSError: The connection is lost, or none can be made.
            HTTPException: The answer is cut off, or is none.
            ValueError: A header has more than one line.
        """
        head = self._heads.get((path, headers)) or self._make_head(path, headers)
        size = len(body)
        end = b"%d\r\n\r\n" % size if number is None else b"%d\r\ntwinkle-request: %d\r\n\r\n" % (size, number)
        connection, answer = self._connected(connect_seconds, seconds)
        try:
            connection.sock.sendall(b"".join((head, b"content-length: ", end, body)))
            found = answer.read()
        except BaseException:
            connection.close()
            raise
        if answer.keeps and len(self._idle) < _KEPT and not self._closed:
            self._idle.append((connection, answer, time.monotonic()))
        else:
            connection.close()
        return answer.status, answer.headers, found

    def close(self) -> None:
        """Close the connections that are not in use; the others close after their answers."""
        self._closed = True
        while self._idle:
            self._idle.pop()[0].close()

    def _make_head(self, path: str, headers: Headers) -> bytes:
        head = _Request(*self._place, 80 if self._options is None else 443).head(path, headers)
        if len(self._heads) >= _MOST_HEADS:
            self._heads.clear()
        self._heads[path, headers] = head
        return head

    def _connected(self, connect_seconds: float, seconds: float) -> tuple[HTTPConnection, AnswerReader]:
        while True:
            try:
                connection, answer, since = self._idle.pop()
            except IndexError:
                break
            if time.monotonic() < since + _LOOK_SECONDS or connection.is_connected:
                return connection, answer
            connection.close()
        host, port = self._place
        if self._options is None:
            connection = HTTPConnection(host, port, timeout=connect_seconds)
        else:
            connection = HTTPSConnection(host, port, timeout=connect_seconds, **self._options)
        try:
            connection.connect()
            connection.sock.settimeout(seconds)
            return connection, AnswerReader(connection.sock)
        except BaseException:
            connection.close()
            raise
