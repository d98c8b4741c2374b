"""Generators that a dataset holds: loader processes have copies of one, and draw alike; a warning says so."""

import random
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from twinkle_data import DataLoader, sample_seed


class Own:
    """Draws from a generator of its own.

    Args:
        generator: The generator, in a place that has to be found.
        draw: Draws from it.
    """

    def __init__(self, generator: Any, draw: Callable[[Any], float]) -> None:
        self.parts = {"transforms": [generator]}
        self.draw = draw

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> float:
        return self.draw(self.parts["transforms"][0])


class Ordered:
    """Makes an order at its first sample, alike in all processes, and draws nothing later."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)
        self.order: list[int] = []

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> int:
        if not self.order:
            self.order = self.rng.permutation(32).tolist()
        return self.order[index]


class Keyed(Own):
    def __getitem__(self, index: int) -> float:
        return float(np.random.default_rng(sample_seed()).random())


def normal(rng: Any) -> float:
    return float(rng.normal())


def uniform(rng: Any) -> float:
    return float(rng.random())


def of_torch(generator: Any) -> float:
    return float(torch.rand((), generator=generator))


def read(dataset: object, **options: Any) -> list[Any]:
    options = {"batch_size": 4, "num_workers": 2} | options
    return [row for batch in DataLoader(dataset, **options) for row in batch]


def seed_it(number: int) -> None:
    info = torch.utils.data.get_worker_info()
    assert info is not None
    own: Any = info.dataset
    own.parts["transforms"][0] = np.random.default_rng(info.seed)


KINDS: dict[str, tuple[Any, Callable[[Any], float]]] = {
    "Generator": (np.random.default_rng(3), normal),
    "RandomState": (np.random.RandomState(3), normal),
    "Random": (random.Random(3), uniform),
    "torch": (torch.Generator(), of_torch),
}


@pytest.mark.parametrize("kind", KINDS)
def test_processes_that_draw_alike_are_warned_of(kind: str) -> None:
    with warnings.catch_warnings(record=True) as seen:  # since Python 3.12, it also warns of forks beside threads
        warnings.simplefilter("always")
        rows = read(Own(*KINDS[kind]))
    assert len(set(rows)) < 32, "they did draw alike"
    told = [str(one.message) for one in seen if one.category is RuntimeWarning]
    assert any(re.search(r"Own holds.*sample_seed", one) for one in told), told
    assert len([one for one in told if "num_workers=2" in one]) == 1


def test_datasets_that_do_not_draw_alike_are_not_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sorted(read(Ordered())) == [*range(32)]
        assert len(set(read(Keyed(np.random.default_rng(3), normal)))) == 32
        assert len(set(read(Own(np.random.default_rng(3), normal), num_workers=1))) == 32
        assert len(set(read(Own(np.random.default_rng(3), normal), worker_init_fn=seed_it))) == 32
        read(Own(random.SystemRandom(), uniform))
