"""Small requests: each is one write, on a connection that is kept for the next."""

from __future__ import annotations

import http.client
from typing import TYPE_CHECKING, Any

from urllib3.connection import HTTPConnection, HTTPSConnection

from twinkle_remote.http.client.answer_reader import AnswerReader

if TYPE_CHECKING:
    from collections.abc import Mapping

_KEPT = 32  # connections


class _Request(http.client.HTTPConnection):
    """A request in the making: head and body become one write, so that the server reads once."""

    def __init__(self, host: str, port: int, default_port: int) -> None:
        self.default_port = default_port  # the header `Host` leaves it out
        super().__init__(host, port)
        self._written: list[Any] = []

    def send(self, data: Any) -> None:
        """Collect what `http.client` sends."""
        self._written.append(data)

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        """The whole request."""
        self.putrequest("POST", path, skip_accept_encoding=True)
        self.putheader("content-length", str(len(body)))
        for name, value in headers.items():
            self.putheader(name, value)
        self.endheaders()
        return b"".join((*self._written, body))


class SmallRequests:
    """Connections to one server for requests whose bodies and answers are small.

    Args:
        host: The server.
        port: Its port.
        options: Of TLS: the certificates to trust; None for plain HTTP.
    """

    def __init__(self, host: str, port: int, options: Mapping[str, Any] | None) -> None:
        self._place = host, port
        self._options = options
        self._idle: list[HTTPConnection] = []
        self._closed = False

    def post(
        self, path: str, body: bytes, headers: Mapping[str, str], connect_seconds: float, seconds: float
    ) -> tuple[int, dict[str, str], bytes]:
        """Send a request; returns the status, the headers and the body of the answer.

        Args:
            path: The path.
            body: The body.
            headers: The headers, apart from those of its framing.
            connect_seconds: Seconds for a new connection.
            seconds: Seconds without a byte of the answer, after which it is lost.

        Raises:
            OSError: The connection is lost, or none can be made.
            HTTPException: The answer is cut off, or is none.
            ValueError: A header has more than one line.
        """
        request = _Request(*self._place, 80 if self._options is None else 443).post(path, body, headers)
        connection = self._connected(connect_seconds, seconds)
        try:
            connection.sock.sendall(request)
            answer = AnswerReader()
            found = answer.read(connection.sock)
        except BaseException:
            connection.close()
            raise
        if answer.keeps and len(self._idle) < _KEPT and not self._closed:
            self._idle.append(connection)
        else:
            connection.close()
        return answer.status, answer.headers, found

    def close(self) -> None:
        """Close the connections that are not in use; the others close after their answers."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def _connected(self, connect_seconds: float, seconds: float) -> HTTPConnection:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                break
            if connection.is_connected:
                return connection
            connection.close()
        host, port = self._place
        if self._options is None:
            connection = HTTPConnection(host, port, timeout=connect_seconds)
        else:
            connection = HTTPSConnection(host, port, timeout=connect_seconds, **self._options)
        try:
            connection.connect()
            connection.sock.settimeout(seconds)
        except BaseException:
            connection.close()
            raise
        return connection
