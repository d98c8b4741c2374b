"""Waits for the first of several calls, in the order in which workers end them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from twinkle_remote.call.pending.circles import CircleWatch
from twinkle_remote.sessions.current import running

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.call.pending.pending_call import PendingCall
    from twinkle_remote.protocol.backend import Backend

_SLICE_SECONDS = 0.5  # between two looks at deadlines


def first_over(calls: Sequence[PendingCall], seconds: float | None = None) -> PendingCall | None:
    """Wait for the first call that is done, has failed or is late; None when the time is over.

    Args:
        calls: At least one.
        seconds: At or above 0; None for no limit other than the deadlines of the calls.
    """
    until = None if seconds is None else time.monotonic() + seconds
    backend = running().backend
    with CircleWatch(calls, backend, limited=until is not None) as circles:
        return _first(calls, until, backend, circles)


def _first(
    calls: Sequence[PendingCall], until: float | None, backend: Backend, circles: CircleWatch
) -> PendingCall | None:
    while True:
        over = [call for call in calls if call.ends_within(0.0)]
        if over:
            return min(over, key=_ended_at)
        left = _SLICE_SECONDS if until is None else min(_SLICE_SECONDS, until - time.monotonic())
        if left <= 0:
            return None
        if not backend.wait([reply for call in calls for reply in call.pending()], left):
            circles.look()


def _ended_at(call: PendingCall) -> float:
    """When the workers ended a call, in seconds of their clocks; a late one comes last."""
    if call.failed():
        return call.failed_at()
    if not call.done():
        return float("inf")
    outcomes = [call.outcome(rank) for rank in call.ranks]
    return max(outcome.started + outcome.seconds for outcome in outcomes)
