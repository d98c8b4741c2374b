"""The calls that nobody is known to have waited for: failures are told once, and there are not too many of them."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from typing import TYPE_CHECKING

from twinkle_remote.context import current_worker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.call.pending_call import Call
    from twinkle_remote.protocol.backend import Backend

_log = logging.getLogger("twinkle.remote")
_MAX_PENDING = 256
_POLL_SECONDS = 0.05


class InFlight:
    """Calls that are not known to be done, by the worker that made them (or the driver), the oldest first.

    Args:
        backend: Where they run.

    Attributes:
        closed: A shutdown is over, and nothing comes any more.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._calls: dict[tuple[str | None, int | None], dict[int, Call]] = {}
        self._failed: weakref.WeakValueDictionary[int, Call] = weakref.WeakValueDictionary()
        self.closed = False
        self._polled = 0.0
        self._lock = threading.Lock()

    def add(self, call: Call) -> None:
        """Remember a call until it is done; with too many of this caller's, wait until one is."""
        here = current_worker()
        with self._lock:
            mine = self._calls.setdefault((here.group, here.rank), {})
        mine[id(call)] = call
        now = time.monotonic()
        if len(mine) > _MAX_PENDING:
            self._wait_for_room(mine)
        elif len(mine) > 1 and now - self._polled > _POLL_SECONDS:
            self._polled = now
            for oldest in _listed(mine)[:1]:
                oldest.done()

    def settled(self, call: Call) -> None:
        """Forget a call that is done; a failure is logged once nobody can look at it any more."""
        for calls in tuple(self._calls.values()):
            if calls.pop(id(call), None) is not None:
                break
        if not call.failed() or call.looked_at:
            return
        if call.held:
            self._failed[id(call)] = call
        else:
            self._tell(call)

    def tell_all(self) -> None:
        """Log every failure that nobody has looked at."""
        for call in [*list(self._failed.values()), *(call for call in self.calls() if call.failed())]:
            self._tell(call)

    def _tell(self, call: Call) -> None:
        self._failed.pop(id(call), None)
        if not call.looked_at:
            call.looked_at = True
            _log.error("a call failed and nobody waited for it: %s", call.failure_text())

    def calls(self) -> Sequence[Call]:
        """All of them."""
        return [call for calls in tuple(self._calls.values()) for call in _listed(calls)]

    def poll(self) -> None:
        """Look after each of them; never waits."""
        for call in self.calls():
            call.done()

    def drain(self, seconds: float) -> Sequence[Call]:
        """Wait until all are done, but for those that failed or are past their deadline.

        Args:
            seconds: How long.

        Returns:
            Those that are not done.
        """
        until = time.monotonic() + seconds
        told = False
        while True:
            self.poll()
            left = [call for call in self.calls() if not (call.expendable or call.failed() or call.late())]
            remaining = until - time.monotonic()
            if not left or remaining <= 0:
                return left
            if not told and seconds - remaining > 1.0:
                told = True
                _log.warning("waiting up to %.0f s for %s before shutdown", remaining, names_of(left))
            self._backend.wait([reply for call in left for reply in call.pending()], min(remaining, 1.0))

    def _wait_for_room(self, mine: dict[int, Call]) -> None:
        for call in _listed(mine):
            call.done()
        while len(mine) > _MAX_PENDING and not self.closed:
            replies = [reply for call in _listed(mine) for reply in call.pending()]
            if replies:
                self._backend.wait(replies, None)
            for call in _listed(mine):
                call.done()


def _listed(calls: dict[int, Call]) -> list[Call]:
    while True:
        try:
            return list(calls.values())
        except RuntimeError:  # the garbage collector let go of a lazy result meanwhile
            continue


def names_of(calls: Sequence[Call]) -> str:
    """Calls as a log line lists them."""
    shown = ", ".join(sorted({call.name for call in calls}))
    return f"{len(calls)} call{'s' if len(calls) > 1 else ''} ({shown})"
