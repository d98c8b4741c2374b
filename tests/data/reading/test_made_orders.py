"""An order that a dataset makes while it is read: processes, ranks and runs that have made different ones raise."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset

from twinkle_data import DataLoader, RanksDifferError
from twinkle_mesh import DeviceGroup, DeviceMesh, use_rank
from twinkle_remote import session

MESH = DeviceMesh.from_sizes(dp_size=2)


class Ordered:
    """Makes its order at the first row that is read."""

    def __init__(self) -> None:
        self.order: Any = None

    def make(self) -> Any:
        return torch.randperm(16)

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> int:
        if self.order is None:
            self.order = self.make()
        return int(self.order[index])


class ByNumpy(Ordered):
    def make(self) -> Any:
        return np.random.permutation(16)


class Together(Ordered):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


class InPlace(Ordered):
    def __init__(self) -> None:
        self.order = list(range(16))
        self.done = False

    def __getitem__(self, index: int) -> int:
        if not self.done:
            random.shuffle(self.order)
            self.done = True
        return int(self.order[index])


class Fixed(Ordered):
    def make(self) -> Any:
        return np.random.default_rng(0).permutation(16).tolist()


class Caching(Ordered):
    """Collects what it reads: no order."""

    def __init__(self) -> None:
        self.cache, self.log = [0] * 16, [0]

    def __getitem__(self, index: int) -> int:
        self.cache[index] = index + 1
        self.log.append(index)
        return index


def dataset(kind: Any) -> Any:
    return kind()


DRAWN: list[Any] = [Ordered, ByNumpy, Together, InPlace, lambda: Subset(dataset(Ordered), range(16))]
ALIKE: list[Any] = [Fixed, Caching, lambda: Subset(dataset(Fixed), range(16))]


def rows(loader: Any) -> list[int]:
    return [row for batch in loader for row in batch]


def in_processes(kind: Any) -> list[int]:
    return rows(DataLoader(kind(), batch_size=4, num_workers=2, multiprocessing_context="fork"))


def on_a_group(kind: Any) -> list[int]:
    with session("threads", groups=[DeviceGroup("data", 2, "CPU")]):
        return rows(DataLoader(kind(), batch_size=4, device_mesh=MESH, remote_group="data"))


def after_a_resume(kind: Any) -> list[int]:
    loader: DataLoader[Any] = DataLoader(kind(), batch_size=4)
    begun = [*next(loader), *next(loader)]
    again: DataLoader[Any] = DataLoader(kind(), batch_size=4)
    again.load_state_dict(loader.state_dict())
    return begun + rows(again)


@pytest.mark.parametrize("where", [in_processes, on_a_group, after_a_resume])
@pytest.mark.parametrize("kind", DRAWN)
def test_orders_that_differ_are_refused(kind: Any, where: Any) -> None:
    with pytest.raises(RanksDifferError, match="order of its rows"):
        where(kind)


@pytest.mark.parametrize("where", [in_processes, on_a_group, after_a_resume])
@pytest.mark.parametrize("kind", ALIKE)
def test_orders_of_a_fixed_seed_caches_and_logs_pass(kind: Any, where: Any) -> None:
    assert sorted(where(kind)) == list(range(16))


def test_a_rank_that_nothing_compares_is_warned() -> None:
    with use_rank(0):
        loader: DataLoader[Any] = DataLoader(Ordered(), batch_size=4, device_mesh=MESH)
        with pytest.warns(RuntimeWarning, match="nothing compares"):
            next(loader)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            next(loader)
            next(DataLoader(Caching(), batch_size=4, device_mesh=MESH))
