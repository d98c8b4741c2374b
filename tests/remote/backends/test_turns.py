"""Constructors on threads draw what they would draw in processes of their own; where that fails, a warning tells."""

from __future__ import annotations

import random
import sys
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from twinkle_mesh import DeviceGroup
from twinkle_remote import current_worker, on, remote_class, remote_function, session
from twinkle_remote.backends import turns
from twinkle_remote.backends.rng_warnings import RngWarnings
from twinkle_remote.random_state import RandomState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GROUPS = [DeviceGroup("four", 4, "CPU"), DeviceGroup("two", 2, "CPU"), DeviceGroup("one", 1, "CPU")]
SEED = 11
DRAW: dict[str, Callable[[], object]] = {
    "random": random.random,
    "numpy": np.random.random,
    "torch": lambda: torch.rand(()),
}


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)  # with 1e-5 threads of a busy machine did nothing but switch, for many minutes
    try:
        with session("threads", groups=GROUPS, seed=SEED, lazy_collect=False):
            yield
    finally:
        sys.setswitchinterval(interval)


def draw(count: int = 40) -> list[tuple[float, float, float]]:
    return [(random.random(), float(np.random.random()), float(torch.rand(()))) for _ in range(count)]


def expected(seed: int, count: int = 40) -> list[tuple[float, float, float]]:
    python, numpy = random.Random(seed), np.random.RandomState(seed)
    generator = torch.Generator().manual_seed(seed)
    return [
        (python.random(), float(numpy.random_sample()), float(torch.rand((), generator=generator)))
        for _ in range(count)
    ]


@remote_class()
class Drawing:
    """Draws as its constructor begins.

    Args:
        seed: What it seeds the generators with first; None does not.
        before: Runs on each rank before it draws.
    """

    def __init__(self, seed: int | None = None, before: Callable[[], object] | None = None) -> None:
        if seed is not None:
            random.seed(seed)
            np.random.seed(seed)
            torch.manual_seed(seed)
        if before is not None:
            before()
        self.drawn = draw()

    @remote_function(dispatch="all")
    def told(self) -> list[tuple[float, float, float]]:
        return self.drawn

    @remote_function(dispatch="all")
    def draws(self) -> None:
        draw(2)

    @remote_function(execute="first")
    def draws_on_one(self) -> None:
        draw(2)


@remote_class()
class Outer:
    def __init__(self) -> None:
        self.first = draw(2)
        if current_worker().rank == 0:
            self.inner = on("four").create(Drawing, 5)
        self.second = draw(2)

    @remote_function(dispatch="all")
    def told(self) -> list[tuple[float, float, float]]:
        return self.first + self.second


def test_a_constructor_that_seeds_draws_the_same_on_every_rank() -> None:
    assert on("four").create(Drawing, 7).told() == [expected(7)] * 4


def test_ranks_begin_with_the_seed_and_go_on_from_there() -> None:
    first, second = on("four").create(Drawing), on("four").create(Drawing)
    both = expected(SEED, 80)
    assert first.told() == [both[:40]] * 4 and second.told() == [both[40:]] * 4


def test_the_program_s_own_generators_do_not_move() -> None:
    before = draw(1)
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    on("four").create(Drawing, 7)
    assert draw() == expected(1) and before == expected(SEED, 1)


def test_a_constructor_that_builds_another_component_leaves_its_turn() -> None:
    outer = on("two").create(Outer)
    assert outer.told() == [expected(SEED, 4)] * 2


def test_constructors_that_wait_for_each_other_end_and_tell_that_they_drew_at_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "_IDLE_SECONDS", 0.3)
    everyone = threading.Barrier(4)
    on("four").create(Drawing, None, everyone.wait)
    (message,) = (record.getMessage() for record in caplog.records)
    assert message.startswith("Drawing.__init__ ran while random numbers were drawn on several ranks")
    assert "draws from random and numpy and torch may be mixed" in message and "torch.Generator" in message
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    assert draw() == expected(1)
    assert on("four").create(Drawing, 7).told() == [expected(7)] * 4


def test_constructors_that_stand_still_and_draw_nothing_are_no_reason_to_warn(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "_IDLE_SECONDS", 0.3)
    on("four").create(Waiting, threading.Barrier(4))
    assert caplog.records == []


@pytest.mark.slow
def test_the_warning_names_only_what_was_drawn_from(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "_IDLE_SECONDS", 0.3)
    on("four").create(DrawingSome, threading.Barrier(4), ("random",))
    on("four").create(DrawingOthers, threading.Barrier(4), ("torch", "numpy"))
    first, second = (record.getMessage() for record in caplog.records)
    assert "draws from random may be mixed" in first
    assert "draws from numpy and torch may be mixed" in second


def test_generators_that_were_used_before_are_no_reason_to_warn(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "_IDLE_SECONDS", 0.3)
    on("four").create(Drawing)
    on("four").create(Waiting, threading.Barrier(4))
    assert caplog.records == []


def test_what_is_drawn_while_a_thread_stands_still_is_not_its_own(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "_IDLE_SECONDS", 0.1)
    taken, go = threading.Event(), threading.Event()
    shared = turns.Turns(RngWarnings(), patience=60)

    def stands_still() -> None:
        with shared.taken(RandomState(SEED), "Waits.__init__"):
            taken.set()
            assert go.wait(60)

    thread = threading.Thread(target=stands_still)
    thread.start()
    assert taken.wait(60)
    with shared.taken(RandomState(SEED), "Draws.__init__"):
        assert draw() == expected(SEED)
    go.set()
    thread.join()
    assert caplog.records == []


@remote_class()
class DrawingSome:
    """Waits for the other ranks, then draws from some libraries."""

    def __init__(self, everyone: threading.Barrier, libraries: tuple[str, ...]) -> None:
        everyone.wait()
        for _ in range(40):
            for library in libraries:
                DRAW[library]()


@remote_class()
class DrawingOthers(DrawingSome):
    pass


@remote_class()
class Waiting:
    def __init__(self, everyone: threading.Barrier) -> None:
        everyone.wait()


@pytest.mark.slow
def test_a_busy_constructor_is_waited_for_however_long_it_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_IDLE_SECONDS", 1.0)

    def busy() -> None:
        until = time.thread_time() + 1.3
        while time.thread_time() < until:
            pass

    assert on("two").create(Drawing, 7, busy).told() == [expected(7)] * 2


def test_methods_that_draw_on_several_ranks_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    drawing = on("four").create(Drawing)
    drawing.draws_on_one()
    assert caplog.records == []
    for _ in range(3):
        drawing.draws()
    (message,) = (record.getMessage() for record in caplog.records)
    assert message.startswith("Drawing.draws ran while random numbers were drawn on several ranks: ranks are threads")
