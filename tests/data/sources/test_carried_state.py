"""Iterables that count or draw from pass to pass: the same rows in the loop, in a loader process and after a resume."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

from twinkle_data import DataLoader, StateMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterator


class Counting(IterableDataset[int]):
    epoch = -1

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        yield from np.random.default_rng(self.epoch).permutation(8).tolist()


class AtItsEnd(IterableDataset[int]):
    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        yield from np.random.default_rng(self.epoch).permutation(8).tolist()
        self.epoch += 1


class Drawing(IterableDataset[int]):
    def __init__(self) -> None:
        self.draws = torch.Generator().manual_seed(3)

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(8, generator=self.draws).tolist()


class InPlace:
    def __init__(self) -> None:
        self.rows, self.draws = list(range(8)), random.Random(3)

    def __iter__(self) -> Iterator[int]:
        self.draws.shuffle(self.rows)
        return iter(list(self.rows))


class Plain:
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


KINDS: list[Any] = [Counting, AtItsEnd, Drawing, InPlace, Plain]


def passes(loader: Any, count: int) -> list[list[int]]:
    return [[row for batch in loader for row in batch] for _ in range(count)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_loader_process_goes_on_with_the_next_pass(kind: Any) -> None:
    plain = kind()
    expected = [list(plain) for _ in range(3)]
    for workers in (0, 1):
        options: Any = {"num_workers": workers, "multiprocessing_context": "fork"}
        assert passes(DataLoader(kind(), batch_size=4, **options), 3) == expected


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_goes_on_with_the_next_pass(kind: Any, workers: int) -> None:
    options: Any = {"batch_size": 4, "num_workers": workers, "multiprocessing_context": "fork"}
    whole: DataLoader[Any] = DataLoader(kind(), **options)
    passes(whole, 2)
    state = json.loads(json.dumps(whole.state_dict()))
    again: DataLoader[Any] = DataLoader(kind(), **options)
    again.load_state_dict(state)
    expected = passes(whole, 2)
    assert passes(again, 2) == expected
    whole.load_state_dict(state)
    assert passes(whole, 2) == expected


def test_a_state_of_other_generators_is_refused() -> None:
    loader: DataLoader[Any] = DataLoader(Drawing(), batch_size=4)
    passes(loader, 1)
    state = loader.state_dict()
    state["carried"]["generators"][0][0] = "Random"
    with pytest.raises(StateMismatchError, match="generators"):
        DataLoader(Drawing(), batch_size=4).load_state_dict(state)
