"""Samplers that change themselves: a run that goes on from a state has the order of one that was not interrupted."""

from __future__ import annotations

import json
import random
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, Sampler, WeightedRandomSampler

from twinkle_data import DeviceMeshSampler, NotResumableError, StateMismatchError
from twinkle_mesh import DeviceMesh

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ONE = DeviceMesh.from_sizes(dp_size=1)
ROWS = 12


class Own(Sampler[int]):
    def __init__(self) -> None:
        self.order: Any = list(range(ROWS))

    def __len__(self) -> int:
        return ROWS


class Counting(Own):
    """Counts its own passes."""

    passes = 0

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        yield from np.random.default_rng(self.passes).permutation(ROWS).tolist()


class InPlace(Own):
    """Shuffles its list by a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.draws = random.Random(1)

    def __iter__(self) -> Iterator[int]:
        self.draws.shuffle(self.order)
        yield from list(self.order)


class InPlaceByGlobal(Own):
    def __iter__(self) -> Iterator[int]:
        random.shuffle(self.order)
        yield from list(self.order)


class Rotating(Own):
    def __init__(self) -> None:
        super().__init__()
        self.order = np.arange(ROWS)

    def __iter__(self) -> Iterator[int]:
        self.order = np.roll(self.order, 1)
        yield from self.order.tolist()


class AtItsEnd(Own):
    """Has a position and an epoch, which its end moves."""

    at = epoch = 0

    def __iter__(self) -> Iterator[int]:
        order = np.random.default_rng(self.epoch).permutation(ROWS).tolist()
        while self.at < ROWS:
            self.at += 1
            yield order[self.at - 1]
        self.at, self.epoch = 0, self.epoch + 1


class ByPriority(Own):
    def __init__(self) -> None:
        super().__init__()
        self.priority = torch.ones(ROWS)

    def __iter__(self) -> Iterator[int]:
        order: list[int] = torch.argsort(self.priority, stable=True).tolist()
        self.priority[order[0]] += 1
        yield from order


class Helped(Own):
    """Its counter is in another object."""

    def __init__(self) -> None:
        super().__init__()
        self.helper = Counting()

    def __iter__(self) -> Iterator[int]:
        yield from self.helper


class Looked(Counting):
    """Has a batch size, so that its first element is looked at."""

    batch_size = 4


SAMPLERS: dict[str, Callable[[], Any]] = {
    "counting": Counting,
    "in place": InPlace,
    "in place by the global generator": InPlaceByGlobal,
    "rotating": Rotating,
    "at its end": AtItsEnd,
    "by priority": ByPriority,
    "helped": Helped,
    "looked at": Looked,
    "accelerate's": lambda: import_module("accelerate.data_loader").SeedableRandomSampler(range(ROWS)),
    "batches of counting": lambda: BatchSampler(Counting(), 4, drop_last=False),
    "random": lambda: RandomSampler(range(ROWS)),
    "weighted": lambda: WeightedRandomSampler(torch.arange(1, ROWS + 1).tolist(), ROWS),
    "list": lambda: list(range(ROWS)),
}


def flat(elements: Any) -> list[int]:
    return [int(row) for one in elements for row in (one if isinstance(one, list) else [one])]


@pytest.mark.parametrize("sets_epoch", [True, False])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_resumed_sampler_has_the_order_of_one_that_was_not_interrupted(kind: str, sets_epoch: bool) -> None:
    def passes(sampler: DeviceMeshSampler, epochs: range) -> list[list[int]]:
        found = []
        for epoch in epochs:
            if sets_epoch:
                sampler.set_epoch(epoch)
            found.append(flat(sampler))
        return found

    whole = passes(DeviceMeshSampler(SAMPLERS[kind](), ONE, seed=1), range(4))
    for epoch in range(3):
        for steps in range(3):
            sampler = DeviceMeshSampler(SAMPLERS[kind](), ONE, seed=1)
            assert passes(sampler, range(epoch)) == whole[:epoch]
            if sets_epoch:
                sampler.set_epoch(epoch)
            running = iter(sampler)
            begun = flat([next(running) for _ in range(steps)])
            state = json.loads(json.dumps(sampler.state_dict()))
            for again in (DeviceMeshSampler(SAMPLERS[kind](), ONE, seed=1), sampler):
                again.load_state_dict(state)
                assert begun + flat(again) == whole[epoch], (epoch, steps)
                assert passes(again, range(epoch + 1, epoch + 2)) == whole[epoch + 1 : epoch + 2], (epoch, steps)


@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_state_after_the_last_step_is_followed_by_the_next_pass(kind: str) -> None:
    sampler = DeviceMeshSampler(SAMPLERS[kind](), ONE, seed=1)
    running = iter(sampler)
    steps = len(sampler)
    for _ in range(steps):
        next(running)
    state = json.loads(json.dumps(sampler.state_dict()))
    assert next(running, None) is None
    again = DeviceMeshSampler(SAMPLERS[kind](), ONE, seed=1)
    again.load_state_dict(state)
    for one in (sampler, again):
        one.set_epoch(1)
    assert flat(sampler) == flat(again)


def test_what_cannot_be_saved_or_put_back_is_refused() -> None:
    class Odd(Own):
        def __iter__(self) -> Iterator[int]:
            self.order = [object()]
            yield from range(ROWS)

    sampler = DeviceMeshSampler(Odd(), ONE)
    assert list(sampler) == list(range(ROWS))
    with pytest.raises(NotResumableError, match="'order'"):
        sampler.state_dict()
    long = InPlace()
    long.order = list(range(70_000))
    used = DeviceMeshSampler(long, ONE)
    fresh = used.state_dict()
    list(used)
    with pytest.raises(StateMismatchError, match="new sampler"):
        used.load_state_dict(fresh)


def test_looking_at_a_sampler_leaves_it_as_it_was() -> None:
    class Both(InPlace):
        batch_size = 4

    sampler = Both()
    shared = sampler.order
    DeviceMeshSampler(sampler, ONE)
    assert sampler.order is shared
    assert shared == list(range(ROWS))
