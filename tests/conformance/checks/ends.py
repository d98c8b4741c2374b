"""Checks: a task ends with its calls, a session with all calls, and no failure is lost."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.conformance.harness import SIZES, needs, plain, raises
from tests.conformance.subjects import callers
from tests.conformance.subjects.callers import Caller

from twinkle_remote import get, submit
from twinkle_remote.errors import TwinkleError
from twinkle_remote.sessions.current import running
from twinkle_remote.sessions.pending_calls import end_calls

if TYPE_CHECKING:
    from tests.conformance.harness import Harness

_MOST_FAILURES = 100


def a_task_ends_with_the_calls_that_it_made(harness: Harness) -> None:
    """Also with the calls that those make, and so on; their lazy results were dropped."""
    made = [harness.build(Caller, size) for size in SIZES[::-1]]
    path = Path(harness.folder, f"touched-{time.monotonic_ns()}")
    plain(made[0].passes_on(made[1:], str(path), 0.1))
    assert path.exists()


def a_task_fails_with_a_call_that_it_made(harness: Harness) -> None:
    """The error names the worker that made the call, and its line there; of a coroutine too."""
    caller, other = harness.build(Caller, 1), harness.build(Caller, 2)
    maker = f" on {harness.groups[1]}[0/1]"
    for call in (caller.lets_fail, caller.lets_fail_later):
        with raises(KeyError, "Caller.raises failed on", f"called from {callers.__file__}:", maker):
            get(submit(call, other))
    assert plain(caller.value(1)) == 1


@needs(served="what a client has dropped is its own, and released; the session goes on")
def an_end_raises_what_nobody_has_taken(harness: Harness) -> None:
    """The first failure, once, with a note."""
    _end_earlier_calls()
    submit(harness.build(Caller, 2).raises)
    with raises(KeyError, "Caller.raises failed on") as caught:
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
    a_task_ends_with_the_calls_that_it_made,
    a_task_fails_with_a_call_that_it_made,
    an_end_raises_what_nobody_has_taken,
)
