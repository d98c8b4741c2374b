"""The end of a session: all calls are done, also those of workers; async ones that are given up are cancelled."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from twinkle_remote.errors import CallTimeoutError
from twinkle_remote.sessions.in_flight.pending_calls import names_of
from twinkle_remote.sessions.in_flight.unseen_failures import raise_unseen
from twinkle_remote.sessions.in_flight.worker_rounds import WorkerRounds

if TYPE_CHECKING:
    from twinkle_remote.sessions.runtime import Runtime

_log = logging.getLogger("twinkle.remote")
_CLEANUP_SECONDS = 10.0  # Ray runs workers at a lower priority: on a busy host they need seconds
_LEAST_SECONDS = 0.5  # for the workers' answers, also where calls in flight are given up


def end_calls(runtime: Runtime, seconds: float | None, *, quietly: bool = False) -> None:
    """Wait for the calls in flight, first for those of this process, then for those that workers have made.

    Args:
        runtime: The session's.
        seconds: How long; None for as long as it takes, 0 to give them up.
        quietly: An error is on its way already: failures are logged, nothing is raised, and no worker is asked.

    Raises:
        CallTimeoutError: The calls took longer than `seconds` (above 0), or an unseen one is past its deadline.
        TwinkleError: A call that no caller had waited for failed; as the call would have raised it.
    """
    began = time.monotonic()
    left = runtime.in_flight.drain(seconds)
    lost = f"{names_of(left)} in flight" if left else ""
    if lost:
        _log.warning("shutdown: %s, the results are lost", lost)
    if quietly:
        runtime.in_flight.log_unseen()
        return
    rounds = WorkerRounds(runtime.backend, runtime.in_flight.given_up)
    unasked = rounds.wait(None if seconds is None else max(_LEAST_SECONDS, began + seconds - time.monotonic()))
    if unasked:
        _log.warning("shutdown: given up before %s", unasked)
    first, others = runtime.in_flight.take_unseen()
    unseen = sorted([*rounds.unseen, *([] if first is None else [first])], key=lambda failure: failure.failed_at)
    if unseen:
        raise_unseen(unseen[0], others + rounds.others + len(unseen) - 1)
    if seconds and (left or unasked):
        given_up = f"{names_of(left, 'was', 'were')} not done" if left else f"it was not so that {unasked}"
        raise CallTimeoutError(f"shutdown: {given_up} after {seconds:g} s, and given up")


def cancel_calls(runtime: Runtime) -> None:
    """Cancel the async calls in flight, and give their cleanup a short time before the workers end."""
    calls = [call for call in runtime.in_flight.calls() if call.spec.on_loop and not call.done()]
    for call in calls:
        call.cancel()
    until = time.monotonic() + _CLEANUP_SECONDS
    while replies := [reply for call in calls for reply in call.pending()]:
        left = until - time.monotonic()
        if left <= 0 or not runtime.backend.wait(replies, left):
            return
        for call in calls:
            call.done()
