"""Checks: `Lazy.cancel` ends what has not ended, and frees its place."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.conformance.harness import checks_of, needs, raises
from tests.conformance.subjects.cancelled import Slow

from twinkle_remote import get, submit
from twinkle_remote.errors import CallCancelledError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.harness import Harness

    from twinkle_remote import Lazy

_LONG, _SHORT = 600.0, 0.5
_PATIENCE = 20.0


def _until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + _PATIENCE
    while not holds() and time.monotonic() < until:
        time.sleep(0.02)
    assert holds()


def _is_cancelled(lazy: Lazy[object]) -> None:
    lazy.cancel()
    with raises(CallCancelledError):
        get(lazy)


@needs(apart=True)
def coroutines_are_cancelled(harness: Harness) -> None:
    """One that runs, at its await; one that waits for a place; one that was sent in this moment. The place is free."""
    slow = harness.build(Slow, 2)
    running, waiting = submit(slow.dreams, _LONG), submit(slow.dreams, _LONG)
    _until(lambda: get(slow.ran()) == [f"async {_LONG}"])
    _is_cancelled(waiting)
    _is_cancelled(running)
    _is_cancelled(submit(slow.dreams, _LONG))
    assert get(submit(slow.dreams, 0.0)) == "dreamt"
    ran = get(slow.ran())
    assert ran[:2] == [f"async {_LONG}", "cancelled"] and ran[-1] == "async 0.0"


@needs(apart=True)
def what_has_not_begun_does_not_run(harness: Harness) -> None:
    """A `def` method behind another one, and one that waits for its argument; one that has begun goes on."""
    slow, other = harness.build(Slow, 1), harness.build(Slow, 2)
    begun = submit(slow.sleeps, _SHORT)
    _until(lambda: not begun.done())
    behind = [submit(slow.sleeps, _LONG), submit(slow.dreams, _LONG), submit(slow.sleeps, 0.0)]
    for lazy in behind[:2]:
        _is_cancelled(lazy)
    argument = submit(other.sleeps, _SHORT)
    _is_cancelled(submit(slow.uses, argument))
    assert get([begun, behind[2], argument]) == ["slept"] * 3
    begun.cancel()
    assert get(begun) == "slept"
    assert not {"use", f"def {_LONG}"} & set(get(slow.ran()))


CHECKS = checks_of(globals())
