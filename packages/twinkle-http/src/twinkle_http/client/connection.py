"""Requests to the server: retried after a lost connection, within a limit, and numbered, so that none runs twice."""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import urllib3
from urllib3.util import SKIP_HEADER

from twinkle_http.loopback import is_loopback
from twinkle_http.wire.compression import GZIP, deflated, inflated
from twinkle_http.wire.frame import TREES, read_frame
from twinkle_http.wire.in_head import HEADER, MOST_BYTES, from_header, to_header
from twinkle_http.wire.limits import Limits
from twinkle_remote.errors import (
    BackendError,
    DispatchError,
    NotInitializedError,
    SessionLostError,
    StoreTimeoutError,
    TwinkleError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from email.message import Message

    from twinkle_http.wire.frame import Tree, WireMessage
    from twinkle_http.wire.memory import Buffer

    Headers = Mapping[str, str] | Message

_log = logging.getLogger("twinkle.http")
_ROOT = "/twinkle/1"
_CONNECT_SECONDS = 10.0
_READ_SECONDS = 60.0
_LONGEST_PAUSE_SECONDS = 2.0
_REFUSED_SECONDS = 10.0  # that a server which refuses connections is tried
_SILENT_SECONDS = 2.0  # without an answer, after which a warning tells
_REMEDY = (
    'start the server, or look at its address and port; initialize("http", patience=seconds) says how long a lost '
    "connection is tried again"
)
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
Answer = tuple["Tree[Any]", list["Buffer"]]


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
        compress: Send large messages compressed, in both directions.

    Attributes:
        address: The URL.
        codings: The compressions of bodies that the server reads.

    Raises:
        BackendError: The address is no URL of HTTP, or is plain HTTP beyond this machine.
    """

    def __init__(
        self,
        address: str,
        token: str,
        *,
        tls: str | None,
        insecure: bool,
        patience: float,
        compress: bool = False,
    ) -> None:
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
        self.address = address
        self.codings: tuple[str, ...] = ()
        self._patience = patience
        self._compress = compress
        self._common = {"authorization": f"Bearer {token}", "user-agent": SKIP_HEADER, "accept-encoding": SKIP_HEADER}
        if compress:
            self._common["accept-encoding"] = GZIP
        self.client = ""
        timeout = urllib3.Timeout(connect=_CONNECT_SECONDS, read=_READ_SECONDS)
        port = url.port or (443 if url.scheme == "https" else 80)
        options: dict[str, Any] = {"maxsize": 32, "block": False, "timeout": timeout}
        secure: dict[str, Any] | None = (
            {"cert_reqs": "CERT_REQUIRED", "ca_certs": tls} if url.scheme == "https" else None
        )
        if secure is not None:
            self._pool: Any = urllib3.HTTPSConnectionPool(url.hostname, port, **secure, **options)
        else:
            self._pool = urllib3.HTTPConnectionPool(url.hostname, port, **options)
        self._lock = threading.Lock()
        self._next = 1
        self._open: set[int] = set()

    @property
    def client(self) -> str:
        """Id of this client; empty before it is open."""
        return self._client

    @client.setter
    def client(self, name: str) -> None:
        self._client = name
        self._headers = self._common | {"twinkle-client": name}

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
        size = message.nbytes
        is_small, in_head = size <= _AT_ONCE_BYTES, size <= MOST_BYTES
        zipped = self._compress and GZIP in self.codings and not is_small
        headers = self._headers | ({} if number is None else {"twinkle-request": str(number)})
        if in_head:
            headers |= {HEADER: to_header(message.to_bytes())}
        else:
            headers |= {"content-encoding": GZIP} if zipped else {"content-length": str(size)}

        def send() -> bytes:
            body: Any = None
            if not in_head:
                body = message.to_bytes() if is_small else deflated(message.chunks()) if zipped else message.chunks()
            response = self._asked("POST", path, body, headers)
            return self._body(response.status, response.headers, response.data)

        return self._sent(send, path, self._patience if patience is None else patience)

    def _body(self, status: int, headers: Headers, data: bytes) -> bytes:
        """The body of an answer.

        Raises:
            TwinkleError: It is a refusal.
        """
        if status == 200 and (in_head := headers.get(HEADER)) is not None:
            return from_header(in_head)
        body = data if headers.get("content-encoding") is None else b"".join(_plain(headers, [data]))
        if status not in (200, 204):
            raise refusal(status, body, self.address)
        return body

    def read(
        self, method: str, path: str, timeout: float | None, message: WireMessage | None = None
    ) -> tuple[Answer, int]:
        """Read a value, in parts as it arrives.

        Args:
            method: GET or POST.
            path: Path below the root.
            timeout: Seconds; None for no limit.
            message: A small message that says what is read.

        Returns:
            The message, and its bytes.

        Raises:
            StoreTimeoutError: The time is over.
            SessionLostError: As for `post`.
        """
        until = None if timeout is None else time.monotonic() + timeout
        body = None if message is None else message.to_bytes()
        size = 0

        def left() -> float | None:
            return None if until is None else max(0.001, until - time.monotonic())

        def parts(response: Any) -> Iterator[bytes]:
            nonlocal size
            size = 0
            for part in response.stream(_CHUNK, decode_content=False):
                size += len(part)
                if until is not None and time.monotonic() > until:
                    raise StoreTimeoutError(f"the server sent {size} bytes in {timeout:g} s, and the value has more")
                yield part

        def read() -> Any:
            limit = urllib3.Timeout(connect=_CONNECT_SECONDS, read=left() or _READ_SECONDS * 10)
            response = self._asked(method, path, body, self._headers, preload_content=False, timeout=limit)
            if response.status != 200:
                return self._body(response.status, response.headers, response.data)
            try:
                return read_frame(_plain(response.headers, parts(response)), _LIMITS, TREES)
            finally:
                response.release_conn()

        patience = self._patience if until is None else min(self._patience, left() or 0.0)
        try:
            found = self._sent(read, path, patience)
        except SessionLostError as error:
            if until is not None and time.monotonic() >= until:
                raise StoreTimeoutError(f"the server did not send it within {timeout:g} s") from error
            raise
        return found, size

    def json(self, path: str) -> bytes:
        """The JSON at a path below the root.

        Raises:
            TwinkleError: The server cannot be reached, or refuses the request.
        """

        def read() -> bytes:
            response = self._asked("GET", path, None, self._headers)
            return self._body(response.status, response.headers, response.data)

        return self._sent(read, path, _CONNECT_SECONDS)

    def _asked(self, method: str, path: str, body: Any, headers: Mapping[str, str], **options: Any) -> Any:
        """Send a request.

        Raises:
            ProtocolError: The head of the answer is cut off: then the end of its body cannot be known.
        """
        options |= {"retries": False, "redirect": False, "decode_content": False}  # urllib3 inflates without a bound
        response = self._pool.urlopen(method, _ROOT + path, body, headers, **options)
        try:
            _check_head(response.status, response.headers)
        except urllib3.exceptions.ProtocolError:
            response.close()
            raise
        return response

    def _sent(self, send: Callable[[], T], path: str, patience: float) -> T:
        began, pause, refused_since = time.monotonic(), 0.0, None
        told = False
        while True:
            try:
                return send()
            except _LOST as error:
                now, refused = time.monotonic(), _is_refused(error)
                refused_since = (refused_since or now) if refused else None
                until = began + patience
                if refused_since is not None:  # no process listens there: one that comes back does not know this client
                    until = min(until, refused_since + _REFUSED_SECONDS)
                if now + pause >= until:
                    raise NotReachedError(
                        f"the server at {self.address} was not reached for {max(0.0, until - began):.3g} s ({path}): "
                        f"{error}; {_REMEDY}"
                    ) from None
                if not told and now >= began + _SILENT_SECONDS:
                    told = True
                    _log.warning(
                        "the server at %s does not answer: it is tried for %.0f s more (%s)",
                        self.address,
                        until - now,
                        "it refuses connections" if refused else error,
                    )
                time.sleep(pause * _SYSTEM.uniform(0.5, 1.0))
                pause = min(_LONGEST_PAUSE_SECONDS, max(0.02, 2 * pause))

    def close(self) -> None:
        """Inform the server that this client ends; a server that does not answer notices it by the lease."""
        headers = self._headers | {"content-length": "0"}
        try:
            limit = urllib3.Timeout(connect=2.0, read=_READ_SECONDS)
            self._pool.urlopen("POST", f"{_ROOT}/close", b"", headers, retries=False, timeout=limit)
        except _LOST:
            return
        finally:
            self._pool.close()


_LIMITS = Limits()


def _is_refused(error: BaseException | None) -> bool:
    """Whether no process listens at the address."""
    while error is not None and not isinstance(error, ConnectionRefusedError):
        error = error.__cause__ or error.__context__
    return error is not None


def _check_head(status: int, headers: Headers) -> None:
    """Check that the head of an answer is whole.

    Raises:
        ProtocolError: It is cut off: then the end of its body cannot be known.
    """
    if status == 200 and not headers.get("content-length", "").isdecimal() and not headers.get("transfer-encoding"):
        raise urllib3.exceptions.ProtocolError("the head of an answer is cut off")


def _plain(headers: Headers, parts: Iterable[bytes]) -> Iterable[bytes]:
    """The parts of an answer, inflated where they are compressed: never more than `_LIMITS` says."""
    coding = headers.get("content-encoding", "").lower()
    if coding in ("", "identity"):
        return parts
    if coding != GZIP:
        raise BackendError(f"the server answers with Content-Encoding: {coding[:40]!a}, and this client reads gzip")
    return inflated(parts, _LIMITS.body)


def refusal(status: int, body: bytes, address: str) -> TwinkleError:
    """The error for an answer without status 200."""
    try:
        found = json.loads(body)["error"]
        return refused(str(found["type"]), f"{found['message']} (request {found['request']})", status, address)
    except (ValueError, KeyError, TypeError):
        return BackendError(f"{address} answered {status}, and not as a server of twinkle does")


def refused(kind: str, message: str, status: int, address: str) -> TwinkleError:
    """The error for a refusal."""
    if status in (401, 421):
        return BackendError(f"{address}: {message}")
    return _ERRORS.get(kind, TwinkleError)(f"{address}: {message}")
