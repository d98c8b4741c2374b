"""Loops over handles: uneven ends, failed and late steps, and how far they run ahead."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from twinkle_remote import CallTimeoutError, CollectError, current_worker, on, remote_class, remote_function
from twinkle_remote.protocol.marks import prefetch_of

if TYPE_CHECKING:
    from collections.abc import Iterator

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


@remote_class(prefetch=3)
class Ahead:
    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while True:
            self.at += 1
            yield self.at

    @remote_function(collect="first")
    def position(self) -> int:
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


def test_a_class_says_how_far_its_steps_run_ahead() -> None:
    ahead: Any = on("one").create(Ahead)
    assert next(iter(ahead)) == 1 and ahead.position() == 4
    assert next(ahead) == 2 and ahead.position() == 5


def test_only_an_iter_that_returns_the_object_runs_ahead() -> None:
    class Documented:
        def __iter__(self) -> Documented:
            """Return the iterator."""
            return self

        def __next__(self) -> int:
            raise StopIteration

    class Resetting(Documented):
        def __iter__(self) -> Resetting:
            self.at = 0
            return self

    class Saved(Documented):
        def state_dict(self) -> dict[str, int]:
            return {}

    class Rows(list[int]):
        pass

    assert [prefetch_of(cls) for cls in (Documented, Resetting, Saved, Rows, Steps, Ahead)] == [1, 0, 0, 0, 1, 3]
