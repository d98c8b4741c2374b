"""Requests to the server: retried after a lost connection, within a limit, and numbered, so that none runs twice.

A thread reads the ends of calls in flight; each of its requests is a sign of life, too.
"""

from __future__ import annotations

import json
import logging
import math
import queue
import random
import threading
import time
from contextlib import suppress
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import urllib3
from urllib3.util import SKIP_HEADER

from twinkle_http.errors import refused
from twinkle_http.gate import check_encrypted
from twinkle_http.messages import UpdateAnswer, UpdateRequest, unpacked
from twinkle_http.wire import framed
from twinkle_remote.errors import BackendError, SessionLostError, StoreTimeoutError, TwinkleError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twinkle_http.client.results import ServedReply
    from twinkle_http.messages import CallUpdate
    from twinkle_http.wire import WireMessage

_log = logging.getLogger("twinkle.http")
_ROOT = "/twinkle/1"
_CONNECT_SECONDS = 10.0
_READ_SECONDS = 60.0
_LONGEST_READ_SECONDS = 600.0  # of a value that has to be collected first
_POLL_SECONDS = 20.0
_LONGEST_PAUSE_SECONDS = 2.0
_SILENT_SECONDS = 2.0  # without an answer, after which a warning tells
_AT_ONCE_BYTES = 64 * 1024
_CHUNK = 1 << 20
_SYSTEM = random.SystemRandom()  # the program's own numbers do not depend on how often a request was tried
_LOST = (urllib3.exceptions.HTTPError, HTTPException, OSError)


class Connection:
    """Connections to a server; the arguments are those of `HttpBackend`.

    Attributes:
        client: Id of this client; empty before it is open.

    Raises:
        BackendError: The address is no URL of HTTP, or is plain HTTP beyond this machine.
    """

    def __init__(self, address: str, token: str, *, tls: str | None, insecure: bool, patience: float) -> None:
        url = urlsplit(address)
        if url.scheme not in ("http", "https") or not url.hostname or url.path.strip("/") or url.username:
            raise BackendError(f"address={address!r} is not valid: it is like 'https://host:8765'")
        use = "use https, or insecure=True on both sides"
        check_encrypted(f"address={address!r}", url.hostname, url.scheme == "https", insecure, use)
        if not token or not token.isascii() or not token.isprintable():
            raise BackendError("initialize('http') needs the server's token: token=..., printable ASCII text")
        self.address, self.client, self._patience = address, "", patience
        self._common = {"authorization": f"Bearer {token}", "user-agent": SKIP_HEADER, "accept-encoding": SKIP_HEADER}
        options: dict[str, Any] = {"maxsize": 32, "block": False}
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
        self,
        path: str,
        message: WireMessage,
        number: int | None = None,
        *,
        patience: float | None = None,
        timeout: float = math.inf,
    ) -> bytearray:
        """Send a message, again after a lost connection, with longer and longer pauses; returns the answer.

        Args:
            path: Path below the root.
            message: What is sent.
            number: Its number; None for a request that may run twice.
            patience: Seconds for which a lost connection is tried again; None for the usual ones.
            timeout: Seconds for all of it.

        Raises:
            StoreTimeoutError: The time is over.
            SessionLostError: The server cannot be reached, or no longer knows this client.
            TwinkleError: The server refuses the request.
        """
        began = time.monotonic()
        end = began + timeout
        patience = min(self._patience if patience is None else patience, timeout)
        until, pause, silent = began + patience, 0.0, began + _SILENT_SECONDS
        headers = {} if number is None else {"twinkle-request": str(number)}
        while True:
            try:
                return self._asked(path, message, headers, end)
            except _LOST as error:
                now = time.monotonic()
                if now >= end:
                    raise StoreTimeoutError(f"the server did not send it within {timeout:g} s") from None
                if now + pause >= until:
                    raise SessionLostError(
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

    def _asked(self, path: str, message: WireMessage, headers: Mapping[str, str], end: float) -> bytearray:
        """The answer to a request that is sent once.

        Raises:
            ProtocolError: The head of the answer is cut off: then the end of its body cannot be known.
            OSError: The time is over.
        """
        size = message.nbytes
        body: Any = message.to_bytes() if size <= _AT_ONCE_BYTES else message.chunks()
        given = {**self._common, "twinkle-client": self.client, "content-length": str(size), **headers}
        silence = _LONGEST_READ_SECONDS if path == "/read" else _READ_SECONDS
        limit = urllib3.Timeout(connect=_CONNECT_SECONDS, read=max(0.001, min(silence, end - time.monotonic())))
        options: dict[str, Any] = {"retries": False, "redirect": False, "preload_content": False, "timeout": limit}
        options["decode_content"] = False  # urllib3 inflates without a bound
        response = self._pool.urlopen("POST", _ROOT + path, body, given, **options)
        try:
            if response.status != 200:
                raise _refusal(response.status, response.data, self.address)
            if not response.headers.get("content-length", "").isdecimal():
                response.close()
                raise urllib3.exceptions.ProtocolError("the head of an answer is cut off")
            found = bytearray()
            for part in response.stream(_CHUNK, decode_content=False):
                found += part
                if time.monotonic() >= end:
                    response.close()
                    raise TimeoutError
            return found
        finally:
            response.release_conn()

    def close(self) -> None:
        """Inform the server that this client ends; a server that does not answer notices it by the lease."""
        try:
            self._asked("/close", framed(None), {}, math.inf)
        except (*_LOST, TwinkleError):
            return
        finally:
            self._pool.close()


class Poller:
    """A thread that asks the server; while no call is in flight every `beat` seconds, as a sign of life."""

    def __init__(self, connection: Connection, beat: float, dropped: Callable[[], list[str]]) -> None:
        self._connection, self._beat, self._dropped = connection, beat, dropped
        self._waiting: dict[int, ServedReply] = {}
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._after = 0
        self._ended = False
        self._lost: TwinkleError | None = None
        threading.Thread(target=self._run, name="twinkle-http-updates", daemon=True).start()

    def check(self) -> None:
        """Raise where the session is lost."""
        if self._lost is not None:
            raise type(self._lost)(str(self._lost))

    def expect(self, number: int, reply: ServedReply) -> None:
        """Wait for the end of a call, which is sent after this."""
        self._waiting[number] = reply

    def answered(self, update: CallUpdate) -> None:
        """Take the answer to a call: its end, or that the end will be an update."""
        if not update.accepted:
            self._take(update)
            return
        if (lost := self._lost) is not None and (reply := self._waiting.pop(update.number, None)) is not None:
            reply.lose(lost)
        self._bell.put(None)

    def forget(self, number: int) -> None:
        """Wait no more for a call, which was not taken."""
        self._waiting.pop(number, None)

    def _take(self, update: CallUpdate) -> None:
        reply = self._waiting.pop(update.number, None)
        if reply is not None:
            reply.take(update)

    def end(self) -> None:
        """End the thread; it may be in the middle of a request."""
        self._ended = True
        self._bell.put(None)

    def _run(self) -> None:
        while True:
            if not self._waiting and not self._ended:
                with suppress(queue.Empty):  # nothing rang: it is time for a sign of life
                    self._bell.get(timeout=self._beat)
            if self._ended:
                return
            try:
                self._ask(_POLL_SECONDS if self._waiting else 0.0)
            except Exception as error:  # no other thread would find out
                if not self._ended:
                    self._lose(error)
                return

    def _ask(self, seconds: float) -> None:
        request = UpdateRequest(self._after, seconds, self._connection.floor(), self._dropped())
        answer = unpacked(self._connection.post("/updates", framed(request)), UpdateAnswer)
        for number, update in answer.updates:
            if number > self._after:
                self._after = number
                self._take(update)
        if answer.draining and not self._waiting:
            raise SessionLostError(f"{self._connection.address}: the server stops, and takes no new calls")

    def _lose(self, error: Exception) -> None:
        self._lost = lost = error if isinstance(error, TwinkleError) else SessionLostError(f"{error!r}")
        for number in tuple(self._waiting):
            reply = self._waiting.pop(number, None)
            if reply is not None:
                reply.lose(lost)


def _refusal(status: int, body: bytes, address: str) -> TwinkleError:
    """The error for an answer without status 200."""
    try:
        found = json.loads(body)["error"]
        return refused(str(found["type"]), f"{address}: {found['message']} (request {found['request']})")
    except (ValueError, KeyError, TypeError):
        return BackendError(f"{address} answered {status}, and not as a server of twinkle does")
