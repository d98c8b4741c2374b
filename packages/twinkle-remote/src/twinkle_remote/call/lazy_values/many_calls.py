"""Waits for several calls that make one lazy value."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from twinkle_remote.sessions.current import running

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from twinkle_remote.call.pending.pending_call import PendingCall

_SLICE_SECONDS = 1.0  # between checks of the deadlines


class ManyCalls:
    """The calls that make one lazy value.

    Args:
        calls: At least one, perhaps several times.
    """

    __slots__ = ("_calls",)

    def __init__(self, calls: Iterable[PendingCall]) -> None:
        self._calls = tuple(dict.fromkeys(calls))

    @property
    def calls(self) -> Sequence[PendingCall]:
        """The calls, each once."""
        return self._calls

    @property
    def own_calls(self) -> Sequence[PendingCall]:
        """The calls that are cancelled with it."""
        return self._calls

    def done(self) -> bool:
        """Whether every worker has answered; never waits."""
        return all(call.done() for call in self._calls)

    def wait(self, timeout: float | None) -> None:
        """Wait for every call; the first failure among them is raised at once."""
        until = None if timeout is None else time.monotonic() + timeout
        while (call := self._next_to_wait_for()) is not None:
            left = None if until is None else until - time.monotonic()
            if len(self._pending()) == 1 or call.failed() or call.overdue():
                call.wait(None if left is None else max(0.0, left))
            elif left is not None and left <= 0.0:
                raise call.lateness(timeout)
            else:
                self._wait_for_any(_SLICE_SECONDS if left is None else min(left, _SLICE_SECONDS))

    def ends_within(self, seconds: float) -> bool:
        """Wait for at most `seconds` without raising; returns whether `wait` would now return at once."""
        until = time.monotonic() + seconds
        while (call := self._next_to_wait_for()) is not None:
            left = until - time.monotonic()
            if call.ends_within(0.0):
                return True
            if left <= 0.0:
                return False
            self._wait_for_any(min(left, _SLICE_SECONDS))
        return True

    def state(self) -> str:
        """A short text of its state; never waits."""
        self.done()
        if any(call.failed() for call in self._calls):
            return "failed"
        pending = len(self._pending())
        return f"{len(self._calls) - pending} of {len(self._calls)} calls done" if pending else "done"

    def _pending(self) -> Sequence[PendingCall]:
        return [call for call in self._calls if call.pending()]

    def _next_to_wait_for(self) -> PendingCall | None:
        """A call that has failed or is late, otherwise one that is not done; None if all are done."""
        open_ones = [call for call in self._calls if not call.done() or call.failed()]
        over = [call for call in open_ones if call.failed() or call.overdue()]
        first = sorted(over, key=lambda call: call.failed_at())
        return next(iter([*first, *open_ones]), None)

    def _wait_for_any(self, seconds: float) -> None:
        running().backend.wait([reply for call in self._pending() for reply in call.pending()], seconds)
