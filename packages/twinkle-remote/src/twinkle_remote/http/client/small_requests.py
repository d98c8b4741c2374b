"""Small requests: each is one write, on a connection that is kept for the next."""

from __future__ import annotations

import http.client
from typing import TYPE_CHECKING, Any

from urllib3.connection import HTTPConnection, HTTPSConnection

if TYPE_CHECKING:
    from collections.abc import Mapping
    from email.message import Message

_KEPT = 32  # connections


class _OneWrite(HTTPConnection):
    """A connection that sends the head of a request together with its body, so that the server reads once."""

    _held: list[Any] | None = None

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Send a request by the steps of `http.client`: urllib3's `request` sets the limit of a connect for all."""
        self._held = []
        try:
            self.putrequest("POST", path, skip_accept_encoding=True)
            self.putheader("content-length", str(len(body)))
            for name, value in headers.items():
                self.putheader(name, value)
            self.endheaders()
            held = self._held
        finally:
            self._held = None
        self.send(b"".join((*held, body)))

    def answer(self) -> http.client.HTTPResponse:
        """The answer, of Python's own class: nothing is streamed, inflated or sent on to another place."""
        return http.client.HTTPConnection.getresponse(self)

    def send(self, data: Any) -> None:
        """Send bytes; those of a request wait for its end."""
        if self._held is None:
            super().send(data)
        else:
            self._held.append(data)


class _OneWriteTls(_OneWrite, HTTPSConnection):
    """The same with TLS."""


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
        self._idle: list[_OneWrite] = []
        self._closed = False

    def post(
        self, path: str, body: bytes, headers: Mapping[str, str], connect_seconds: float, seconds: float
    ) -> tuple[int, Message, bytes]:
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
        """
        connection = self._connected(connect_seconds, seconds)
        try:
            connection.post(path, body, headers)
            response = connection.answer()
            found = response.status, response.headers, response.read()
        except BaseException:
            connection.close()
            raise
        if connection.sock is not None and len(self._idle) < _KEPT and not self._closed:
            self._idle.append(connection)
        else:
            connection.close()
        return found

    def close(self) -> None:
        """Close the connections that are not in use; the others close after their answers."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def _connected(self, connect_seconds: float, seconds: float) -> _OneWrite:
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
            connection = _OneWrite(host, port, timeout=connect_seconds)
        else:
            connection = _OneWriteTls(host, port, timeout=connect_seconds, **self._options)
        try:
            connection.connect()
            connection.sock.settimeout(seconds)
        except BaseException:
            connection.close()
            raise
        return connection
