"""What a seed says of the generators of a process: at the start of a session, and before each constructor."""

from __future__ import annotations

import random
import sys
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from twinkle_mesh import DeviceGroup
from twinkle_remote import current_worker, get, on, remote_class, remote_function, session
from twinkle_remote.sessions.seeding import read_generators, set_generators

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GROUPS = [DeviceGroup("four", 4, "CPU"), DeviceGroup("two", 2, "CPU")]
SEED = 11
Draws = list[tuple[float, float, float]]


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = read_generators()
    yield
    set_generators(before)


@pytest.fixture
def threads() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)  # with 1e-5 threads of a busy machine did nothing but switch, for many minutes
    try:
        with session("threads", groups=GROUPS, seed=SEED, lazy_collect=False):
            yield
    finally:
        sys.setswitchinterval(interval)


def draw(count: int = 40) -> Draws:
    return [(random.random(), float(np.random.random()), float(torch.rand(()))) for _ in range(count)]


def expected(seed: int, count: int = 40) -> Draws:
    python, numpy = random.Random(seed), np.random.RandomState(seed)
    generator = torch.Generator().manual_seed(seed)
    return [
        (python.random(), float(numpy.random_sample()), float(torch.rand((), generator=generator)))
        for _ in range(count)
    ]


@remote_class()
class Drawing:
    """Draws in its constructor.

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
    def told(self) -> Draws:
        return self.drawn

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
    def told(self) -> Draws:
        return self.first + self.second


@pytest.mark.usefixtures("threads")
def test_a_constructor_that_seeds_draws_the_same_on_every_rank() -> None:
    assert on("four").create(Drawing, 7).told() == [expected(7)] * 4


@pytest.mark.usefixtures("threads")
def test_each_component_has_the_next_seed_whatever_was_drawn_on_some_ranks_before() -> None:
    first = on("four").create(Drawing)
    first.draws_on_one()
    second = on("four").create(Drawing)
    assert first.told() == [expected(SEED)] * 4 and second.told() == [expected(SEED + 1)] * 4


@pytest.mark.parametrize("mode", ["local", "threads"])
def test_the_programs_own_generators_do_not_move(mode: str) -> None:
    with session(mode, groups=GROUPS, seed=SEED, lazy_collect=False):
        assert draw(1) == expected(SEED, 1)
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        told = on("four").create(Drawing).told()
        assert draw() == expected(1)
    assert told == (expected(SEED) if mode == "local" else [expected(SEED)] * 4)


@pytest.mark.parametrize("mode", ["local", "threads"])
def test_a_constructor_that_waits_for_another_one_lets_it_run_and_goes_on_with_its_own_draws(mode: str) -> None:
    with session(mode, groups=GROUPS, seed=SEED):
        told = get(on("two").create(Outer).told())
    assert told == (expected(SEED, 4) if mode == "local" else [expected(SEED, 4)] * 2)


@pytest.mark.usefixtures("threads")
def test_constructors_run_one_at_a_time() -> None:
    free = threading.Lock()

    def alone() -> None:
        assert free.acquire(blocking=False)
        draw(10)
        free.release()

    on("four").create(Drawing, None, alone)


@pytest.mark.parametrize("seed", [-1, 1 << 32])
def test_a_seed_that_is_none_is_refused(seed: int) -> None:
    with pytest.raises(ValueError, match=f"seed={seed} must be from 0 to"), session("local", seed=seed):
        pass
