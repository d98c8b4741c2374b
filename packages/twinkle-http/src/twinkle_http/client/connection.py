"""Requests to the server: retried after a lost connection, within a limit, and numbered, so that none runs twice."""

from __future__ import annotations

import json
import logging
import math
import random
import threading
import time
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import urllib3
from urllib3.util import SKIP_HEADER

from twinkle_http.loopback import is_loopback
from twinkle_http.messages import DEFAULTS, MessageReader
from twinkle_remote.errors import (
    BackendError,
    DispatchError,
    NotInitializedError,
    SessionLostError,
    StoreTimeoutError,
    TwinkleError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twinkle_http.messages import Buffer, WireMessage

_log = logging.getLogger("twinkle.http")
_ROOT = "/twinkle/1"
_CONNECT_SECONDS = 10.0
_READ_SECONDS = 60.0
_LONGEST_READ_SECONDS = 600.0  # of a value that has to be collected first
_LONGEST_PAUSE_SECONDS = 2.0
_SILENT_SECONDS = 2.0  # without an answer, after which a warning tells
_AT_ONCE_BYTES = 64 * 1024
_CHUNK = 1 << 20
_SYSTEM = random.SystemRandom()  # the program's own numbers do not depend on how often a request was tried
_LOST = (urllib3.exceptions.HTTPError, HTTPException, OSError)
_ERRORS: Mapping[str, type[TwinkleError]] = {
    "Restarted": SessionLostError,
    "LeaseEnded": SessionLostError,
    "Stopping": SessionLostError,
    "Unknown": NotInitializedError,
    "NotServed": DispatchError,
    "TooLarge": DispatchError,
    "Malformed": DispatchError,
}

T = TypeVar("T")


class NotReachedError(SessionLostError):
    """The server could not be reached within the time limit."""


class Connection:
    """Connections to a server.

    Args:
        address: URL of the server.
        token: The token.
        tls: File with the certificates to trust; None for those of the system.
        insecure: Plain HTTP beyond this machine is accepted.
        patience: Seconds for which a lost connection is tried again.

    Attributes:
        address: The URL.
        client: Id of this client; empty before it is open.

    Raises:
        BackendError: The address is no URL of HTTP, or is plain HTTP beyond this machine.
    """

    def __init__(self, address: str, token: str, *, tls: str | None, insecure: bool, patience: float) -> None:
        url = urlsplit(address)
        if url.scheme not in ("http", "https") or not url.hostname or url.path.strip("/") or url.username:
            raise BackendError(f"address={address!r} is not valid: it is like 'https://host:8765'")
        if url.scheme == "http" and not (insecure or is_loopback(url.hostname)):
            raise BackendError(
                f"address={address!r} is plain HTTP beyond this machine, and the token would be sent in plain text: "
                "use https, or insecure=True on both sides"
            )
        if not token or not token.isascii() or not token.isprintable():
            raise BackendError("initialize('http') needs the server's token: token=..., printable ASCII text")
        self.address, self.client, self._patience = address, "", patience
        self._common = {"authorization": f"Bearer {token}", "user-agent": SKIP_HEADER, "accept-encoding": SKIP_HEADER}
        timeout = urllib3.Timeout(connect=_CONNECT_SECONDS, read=_READ_SECONDS)
        options: dict[str, Any] = {"maxsize": 32, "block": False, "timeout": timeout}
        if url.scheme == "https":
            secure: dict[str, Any] = {"cert_reqs": "CERT_REQUIRED", "ca_certs": tls, **options}
            self._pool: Any = urllib3.HTTPSConnectionPool(url.hostname, url.port or 443, **secure)
        else:
            self._pool = urllib3.HTTPConnectionPool(url.hostname, url.port or 80, **options)
        self._lock = threading.Lock()
        self._next = 1
        self._open: set[int] = set()

    def number(self) -> int:
        """A new number for a request that must not run twice."""
        with self._lock:
            number = self._next
            self._next += 1
            self._open.add(number)
            return number

    def answered(self, number: int) -> None:
        """Called when the answer to a numbered request is here, or no longer wanted."""
        with self._lock:
            self._open.discard(number)

    def floor(self) -> int:
        """The lowest number whose answer is not here."""
        with self._lock:
            return min(self._open, default=self._next)

    def post(
        self, path: str, message: WireMessage, number: int | None = None, *, patience: float | None = None
    ) -> bytes:
        """Send a message and return the message that answers it.

        Args:
            path: Path below the root.
            message: The message.
            number: Its number; None for a request that may run twice.
            patience: Seconds for which a lost connection is tried again; None for the usual ones.

        Raises:
            SessionLostError: The server cannot be reached, or no longer knows this client.
            TwinkleError: The server refuses the request.
        """
        headers = {} if number is None else {"twinkle-request": str(number)}

        def send() -> bytes:
            response = self._asked(path, message, headers)
            if response.status not in (200, 204):
                raise refusal(response.status, response.data, self.address)
            data: bytes = response.data
            return data

        return self._sent(send, path, self._patience if patience is None else patience)

    def read(self, path: str, message: WireMessage, timeout: float | None) -> tuple[Any, list[Buffer], int]:
        """Read a value, in parts as it arrives: its root, its buffers, and its bytes.

        Args:
            path: Path below the root.
            message: A small message that says what is read.
            timeout: Seconds; None for no limit.

        Raises:
            StoreTimeoutError: The time is over.
            SessionLostError: As for `post`.
        """
        until = math.inf if timeout is None else time.monotonic() + timeout

        def check() -> float:
            left = until - time.monotonic()
            if left <= 0:
                raise StoreTimeoutError(f"the server did not send it within {timeout:g} s")
            return min(left, _LONGEST_READ_SECONDS)

        def read() -> tuple[Any, list[Buffer], int]:
            limit = urllib3.Timeout(connect=_CONNECT_SECONDS, read=check())
            response = self._asked(path, message, {}, preload_content=False, timeout=limit)
            try:
                if response.status != 200:
                    raise refusal(response.status, response.data, self.address)
                reader: MessageReader[Any] = MessageReader(DEFAULTS)
                for part in response.stream(_CHUNK, decode_content=False):
                    reader.feed(part)
                    check()
                return *reader.finish(), reader.size
            finally:
                response.release_conn()

        try:
            return self._sent(read, path, min(self._patience, check()))
        except SessionLostError:
            check()
            raise

    def _asked(self, path: str, message: WireMessage, headers: Mapping[str, str], **options: Any) -> Any:
        """Send a request.

        Raises:
            ProtocolError: The head of the answer is cut off: then the end of its body cannot be known.
        """
        size = message.nbytes
        body: Any = message.to_bytes() if size <= _AT_ONCE_BYTES else message.chunks()
        given = {**self._common, "twinkle-client": self.client, "content-length": str(size), **headers}
        options |= {"retries": False, "redirect": False, "decode_content": False}  # urllib3 inflates without a bound
        response = self._pool.urlopen("POST", _ROOT + path, body, given, **options)
        if response.status == 200 and not response.headers.get("content-length", "").isdecimal():
            response.close()
            raise urllib3.exceptions.ProtocolError("the head of an answer is cut off")
        return response

    def _sent(self, send: Callable[[], T], path: str, patience: float) -> T:
        """The result of a request; it is sent again after a lost connection, with longer and longer pauses."""
        until, pause, silent = time.monotonic() + patience, 0.0, time.monotonic() + _SILENT_SECONDS
        while True:
            try:
                return send()
            except _LOST as error:
                now = time.monotonic()
                if now + pause >= until:
                    raise NotReachedError(
                        f"the server at {self.address} was not reached for {patience:.3g} s ({path}): {error}; start "
                        'it, or look at its address and port; initialize("http", patience=seconds) says how long a '
                        "lost connection is tried again"
                    ) from None
                if now >= silent:
                    silent = math.inf
                    text = "the server at %s does not answer: it is tried for %.0f s more (%s)"
                    _log.warning(text, self.address, until - now, error)
                time.sleep(pause * _SYSTEM.uniform(0.5, 1.0))
                pause = min(_LONGEST_PAUSE_SECONDS, max(0.02, 2 * pause))

    def close(self) -> None:
        """Inform the server that this client ends; a server that does not answer notices it by the lease."""
        headers = {**self._common, "twinkle-client": self.client, "content-length": "0"}
        try:
            limit = urllib3.Timeout(connect=2.0, read=_READ_SECONDS)
            self._pool.urlopen("POST", f"{_ROOT}/close", b"", headers, retries=False, timeout=limit)
        except _LOST:
            return
        finally:
            self._pool.close()


def refusal(status: int, body: bytes, address: str) -> TwinkleError:
    """The error for an answer without status 200."""
    try:
        found = json.loads(body)["error"]
        return refused(str(found["type"]), f"{found['message']} (request {found['request']})", status, address)
    except (ValueError, KeyError, TypeError):
        return BackendError(f"{address} answered {status}, and not as a server of twinkle does")


def refused(kind: str, message: str, status: int, address: str) -> TwinkleError:
    """The error for a refusal."""
    error = BackendError if status == 401 else _ERRORS.get(kind, TwinkleError)
    return error(f"{address}: {message}")
