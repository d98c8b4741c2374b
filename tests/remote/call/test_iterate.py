"""Loops over handles: uneven ends, failed and late steps."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from twinkle_remote import CallTimeoutError, CollectError, current_worker, on, remote_class, remote_function

pytestmark = pytest.mark.usefixtures("threads")


@remote_class()
class Steps:
    def __init__(self, fail_at: int = -1, uneven: bool = False, gate: threading.Event | None = None) -> None:
        self.at = 0
        self.fail_at = fail_at
        self.stop = 3 + (current_worker().rank or 0) * uneven
        self.gate = gate

    def __iter__(self) -> Steps:
        return self

    @remote_function(collect="flatten", timeout=0.2)
    def __next__(self) -> list[int]:
        if self.gate is not None:
            self.gate.wait(20)
        self.at += 1
        if self.at == self.fail_at:
            raise KeyError(self.at)
        if self.at > self.stop:
            raise StopIteration
        return [self.at]

    @remote_function(collect="first", lazy_collect=False)
    def behind(self) -> int:
        """Answers after the steps that were asked for before."""
        return self.at


def test_ranks_that_end_at_different_steps_are_an_error() -> None:
    steps = on("two").create(Steps, uneven=True)
    seen: list[list[int]] = []
    with pytest.raises(CollectError, match=r"Steps\.__next__: ranks \[0\]"):
        seen.extend(list(step) for step in steps)
    assert seen == [[1, 1], [2, 2], [3, 3]]


def test_a_step_that_fails_is_raised_and_the_next_one_is_there() -> None:
    steps: Any = on("one").create(Steps, fail_at=2)
    assert list(next(iter(steps))) == [1]
    with pytest.raises(KeyError, match=r"Steps\.__next__ failed on one"):
        next(steps)
    assert [list(step) for step in steps] == [[3]]


def test_a_step_that_is_late_is_not_lost() -> None:
    gate = threading.Event()
    steps: Any = on("one").create(Steps, gate=gate)
    iterator = iter(steps)
    with pytest.raises(CallTimeoutError, match=r"Steps\.__next__"):
        next(iterator)
    gate.set()
    assert steps.behind() is not None
    assert [list(step) for step in steps] == [[1], [2], [3]]
