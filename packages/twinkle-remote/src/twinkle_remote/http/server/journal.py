"""What the server did: ids of requests, a log of requests and calls, and the figures of its metrics."""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
import secrets
import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from twinkle_remote.http.server.figures import Figures, sum_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    Send = Callable[[Any], Awaitable[None]]

_access = logging.getLogger("twinkle.http.access")
_GIVEN = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class JournalEntry:
    """A request that is being answered.

    Args:
        scope: The request.
        request: Its id.
    """

    __slots__ = ("_began", "_scope", "request", "sent", "status")

    def __init__(self, scope: Any, request: str) -> None:
        self.request = request
        self.status = 0
        self.sent = 0
        self._scope = scope
        self._began = time.perf_counter()

    @property
    def tenant(self) -> str | None:
        """The tenant whose token the request had; None if it had none that is known."""
        found: str | None = self._scope["state"].get("tenant")
        return found

    def sending(self, send: Send) -> Send:
        """A `send` that tells the client the id."""

        async def sending(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", self.request.encode("ascii"))]
            else:
                self.sent += len(message.get("body", b""))
            await send(message)

        return sending

    def log(self) -> None:
        """Log a request that was refused; with DEBUG, every request."""
        level = logging.INFO if self.status >= 400 else logging.DEBUG
        if not _access.isEnabledFor(level):
            return
        scope, state = self._scope, self._scope["state"]
        _access.log(
            level,
            "%s %s %s %d %s%.1f ms, request %s",
            state.get("tenant") or "-",
            ascii(scope["method"])[1:-1],
            ascii(scope["path"][:200]),
            self.status,
            f"{ascii(state['error'])[1:-1]} " if state.get("error") else "",
            1000 * (time.perf_counter() - self._began),
            self.request,
        )


class Journal:
    """What the server did since its start, by tenant."""

    def __init__(self) -> None:
        self._figures: defaultdict[str | None, Figures] = defaultdict(Figures)  # None: refused without a known token
        self._prefix = secrets.token_hex(4)
        self._count = itertools.count(1)
        self._lock = threading.Lock()

    def begin(self, scope: Any, headers: Mapping[bytes, bytes]) -> JournalEntry:
        """A request has come; its id is the one that it has, or a new one."""
        given = headers.get(b"x-request-id")
        own = given is None or not _GIVEN.fullmatch(given)
        request = f"{self._prefix}-{next(self._count)}" if own or given is None else given.decode("ascii")
        scope["state"]["request"] = request
        return JournalEntry(scope, request)

    def end(self, entry: JournalEntry) -> None:
        """It was answered."""
        with self._lock:
            self._figures[entry.tenant].answered(entry.status, entry.sent)
        entry.log()

    def called(self, name: str, tenant: str, request: str, seconds: float, error: str = "") -> None:
        """A call has ended.

        Args:
            name: Class.method.
            tenant: Whose it was.
            request: Id of its request.
            seconds: Time from its submission to the answer of its last rank.
            error: Type of its error; empty without one.
        """
        with self._lock:
            self._figures[tenant].called(name, seconds, failed=bool(error))
        if _access.isEnabledFor(logging.INFO):
            outcome = f"failed with {ascii(error)[1:-1]}" if error else "done"
            _access.info("%s %s %s, %.4f s, request %s", tenant or "-", ascii(name)[1:-1], outcome, seconds, request)

    @contextlib.contextmanager
    def calling(self, name: str, tenant: str, request: str) -> Iterator[None]:
        """The time of a call; see `called`."""
        began = time.monotonic()
        error = ""
        try:
            yield
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            self.called(name, tenant, request, time.monotonic() - began, error)

    def figures(self, tenant: str | None) -> Figures:
        """The figures at one moment.

        Args:
            tenant: Of this tenant; None for all of them, and for what was refused before its token was known.
        """
        with self._lock:
            return sum_of(self._figures.values() if tenant is None else [self._figures[tenant]])
