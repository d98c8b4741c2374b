"""The pending calls of one caller to one group, the oldest first; their number is limited."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from twinkle_remote.context import in_event_loop
from twinkle_remote.errors import CallTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_remote.protocol.backend import Backend
    from twinkle_remote.sessions.in_flight.call_in_flight import CallInFlight

_log = logging.getLogger("twinkle.remote")
_POLL_SECONDS = 0.05
_SLICE_SECONDS = 1.0
_PATIENCE_SECONDS = 5.0
_SETTLE_SECONDS = 60.0
_TOGETHER = 64  # calls that are waited for at once


class CallQueue:
    """Pending calls in the order in which they were made.

    Args:
        group: Name of the called group.
        limit: Calls that may be in flight, at or above 1.
        backend: The backend that runs them.
        is_closed: Whether the session has ended, so that no more answers arrive.
    """

    def __init__(self, group: str, limit: int, backend: Backend, is_closed: Callable[[], bool]) -> None:
        self._group = group
        self._limit = limit
        self._backend = backend
        self._is_closed = is_closed
        self._calls: dict[int, CallInFlight] = {}
        self._polled = 0.0

    def add(self, call: CallInFlight) -> None:
        """Keep a call until it is done."""
        self._calls[id(call)] = call
        now = time.monotonic()
        if len(self._calls) > 1 and now - self._polled > _POLL_SECONDS:
            self._polled = now
            self._forget_oldest()

    def remove(self, call: CallInFlight) -> bool:
        """Remove a call; False if it is not in this queue."""
        return self._calls.pop(id(call), None) is not None

    def calls(self) -> Sequence[CallInFlight]:
        """All calls."""
        while True:
            try:
                return list(self._calls.values())
            except RuntimeError:  # another thread, or the garbage collector, removed one meanwhile
                continue

    def make_room(self, name: str, timeout: float | None) -> None:
        """Wait until one more call may be made; calls that failed or are past their deadline do not count.

        Args:
            name: Class.method of the new call.
            timeout: Seconds that the new call may take; None for no limit.

        Raises:
            CallTimeoutError: The time is over, and nothing was sent.
        """
        if len(self._calls) < self._limit:
            return
        self._forget_oldest()
        began = time.monotonic()
        warned = False
        while len(self._calls) >= self._limit and not self._is_closed():
            waiting = [call for call in self.calls() if not (call.failed() or call.overdue())]
            if len(waiting) < self._limit:
                return
            waited = time.monotonic() - began
            if timeout is not None and waited >= timeout:
                raise CallTimeoutError(f"{name} was not sent within {timeout:g} s: {self._full()}")
            if not warned and (waited > _PATIENCE_SECONDS or in_event_loop()):
                warned = True
                _log.warning("%s waits: %s%s", name, self._full(), _advice())
            self._wait(waiting, _SLICE_SECONDS if timeout is None else min(_SLICE_SECONDS, timeout - waited))

    def settle(self, timeout: float | None) -> None:
        """Wait until calls of all ranks that failed on some are over on the others, before all ranks are called again.

        A rank that failed would meet its peers' collective of the earlier call in that of the new one. Peers that wait
        for it are freed meanwhile (`free_stuck_peers`).

        Args:
            timeout: Seconds that the new call may take; None for a minute.
        """
        until = time.monotonic() + (_SETTLE_SECONDS if timeout is None else min(timeout, _SETTLE_SECONDS))
        while not self._is_closed() and (left := until - time.monotonic()) > 0:
            split = [call for call in self.calls() if call.spec.collective and call.failed() and not call.done()]
            if not split:
                return
            self._wait(split, min(_SLICE_SECONDS, left))

    def _full(self) -> str:
        return f"{self._limit} calls to group {self._group!r} are in flight, as many as max_in_flight allows"

    def _wait(self, waiting: Sequence[CallInFlight], seconds: float) -> None:
        replies = {reply: call for call in waiting[:_TOGETHER] for reply in call.pending()}
        done = self._backend.wait(list(replies), max(0.0, seconds)) if replies else ()
        for call in {id(replies[reply]): replies[reply] for reply in done}.values() if done else waiting:
            call.done()

    def _forget_oldest(self) -> None:
        """Remove the calls at the front that are done; calls mostly end in the order in which they were made."""
        while True:
            try:
                oldest = next(iter(self._calls.values()), None)
            except RuntimeError:  # as in `calls`
                continue
            if oldest is None or not oldest.done():
                return
            self._calls.pop(id(oldest), None)


def _advice() -> str:
    if not in_event_loop():
        return ""
    return "; the event loop is blocked meanwhile: await results before more calls are made"
