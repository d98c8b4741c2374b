"""Checks: at the end of a session all calls are done, also those of workers, and no failure is lost."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from twinkle_remote.conformance.harness import needs, raises
from twinkle_remote.conformance.subjects import callers
from twinkle_remote.conformance.subjects.callers import Caller
from twinkle_remote.errors import TwinkleError
from twinkle_remote.sessions.current import running
from twinkle_remote.sessions.in_flight.end_calls import end_calls

if TYPE_CHECKING:
    from twinkle_remote.conformance.harness import Harness

_MOST_FAILURES = 100


@needs(own=True)
def an_end_waits_for_the_calls_that_workers_made(harness: Harness) -> None:
    """Also for the calls that those make, and so on; their lazy results were dropped."""
    _end_earlier_calls()
    made = [harness.build(Caller, size) for size in (1, 2, 4, 1)]
    path = Path(harness.folder, f"touched-{time.monotonic_ns()}")
    made[0].passes_on([made[1], made[2], made[0], made[3]], str(path), 0.1)
    end_calls(running(), None)
    assert path.exists()


@needs(own=True)
def an_end_raises_what_failed_unseen_in_a_call_of_a_worker(harness: Harness) -> None:
    """The error names the worker that made the call, and its line there."""
    _end_earlier_calls()
    caller, other = harness.build(Caller, 1), harness.build(Caller, 2)
    caller.lets_fail(other)
    maker = f"{harness.groups[1]}[0/1]"
    with raises(KeyError, "Caller.raises failed on", f"called from {callers.__file__}:", f" on {maker}\n") as caught:
        end_calls(running(), None)
    assert caught.error is not None and "no caller had waited" in str(caught.error.__notes__)
    end_calls(running(), None)


def _end_earlier_calls() -> None:
    """See every failure that earlier calls have left."""
    for _ in range(_MOST_FAILURES):
        try:
            end_calls(running(), None)
        except TwinkleError:
            continue
        return
    raise AssertionError(f"the end of a session raised {_MOST_FAILURES} failures one after the other")


CHECKS = (
    an_end_waits_for_the_calls_that_workers_made,
    an_end_raises_what_failed_unseen_in_a_call_of_a_worker,
)
