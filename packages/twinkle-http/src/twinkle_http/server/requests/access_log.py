"""The work of the server: ids of requests, a log of requests and calls, and its metrics."""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
import secrets
import threading
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

    Send = Callable[[Any], Awaitable[None]]

_access = logging.getLogger("twinkle.http.access")
_GIVEN = re.compile(rb"[A-Za-z0-9._-]{1,64}")
BOUNDS = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0, 600.0)  # seconds


@dataclass(slots=True)
class CallMetrics:
    """The calls of one name.

    Attributes:
        failed: Number that failed.
        seconds: Time that they took, together.
        counts: Number by time: at most each of `BOUNDS`, and more than the last.
    """

    failed: int = 0
    seconds: float = 0.0
    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))

    def add(self, other: CallMetrics) -> None:
        """Add the calls of another."""
        self.failed += other.failed
        self.seconds += other.seconds
        self.counts = [own + more for own, more in zip(self.counts, other.counts, strict=True)]


@dataclass(slots=True)
class ServerMetrics:
    """Metrics of what was done.

    Attributes:
        statuses: Number of requests by status.
        sent: Bytes of answers.
        calls: Metrics of calls by Class.method.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    sent: int = 0
    calls: dict[str, CallMetrics] = field(default_factory=dict)

    def answered(self, status: int, sent: int) -> None:
        """A request was answered."""
        self.statuses[status] += 1
        self.sent += sent

    def called(self, name: str, seconds: float, *, failed: bool) -> None:
        """A call has ended."""
        metrics = self.calls.get(name)
        if metrics is None:
            metrics = self.calls[name] = CallMetrics()
        metrics.failed += failed
        metrics.seconds += seconds
        metrics.counts[bisect_left(BOUNDS, seconds)] += 1


def sum_of(several: Iterable[ServerMetrics]) -> ServerMetrics:
    """The sum of several records."""
    total = ServerMetrics()
    for one in several:
        total.statuses.update(one.statuses)
        total.sent += one.sent
        for name, metrics in one.calls.items():
            total.calls.setdefault(name, CallMetrics()).add(metrics)
    return total


class LoggedRequest:
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
        """A `send` that adds the id to the answer."""

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


class AccessLog:
    """The work of the server since its start, by tenant."""

    def __init__(self) -> None:
        # None: refused without a known token
        self._metrics: defaultdict[str | None, ServerMetrics] = defaultdict(ServerMetrics)
        self._prefix = secrets.token_hex(4)
        self._count = itertools.count(1)
        self._lock = threading.Lock()

    def begin(self, scope: Any, headers: Mapping[bytes, bytes]) -> LoggedRequest:
        """A request has come; its id is the one that it has, or a new one."""
        given = headers.get(b"x-request-id")
        own = given is None or not _GIVEN.fullmatch(given)
        request = f"{self._prefix}-{next(self._count)}" if own or given is None else given.decode("ascii")
        scope["state"]["request"] = request
        return LoggedRequest(scope, request)

    def end(self, entry: LoggedRequest) -> None:
        """It was answered."""
        with self._lock:
            self._metrics[entry.tenant].answered(entry.status, entry.sent)
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
            self._metrics[tenant].called(name, seconds, failed=bool(error))
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

    def metrics(self, tenant: str | None) -> ServerMetrics:
        """The metrics at one moment.

        Args:
            tenant: Of this tenant; None for all of them, and for what was refused before its token was known.
        """
        with self._lock:
            return sum_of(self._metrics.values() if tenant is None else [self._metrics[tenant]])
