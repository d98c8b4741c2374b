"""Loaders over one iterable that keeps its position on itself: each has all rows, in order, and an exact state."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import datasets
import pytest
from tests.data.kinds_of_datasets import Walk, hf, value_of

from twinkle_data import DataLoader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROWS = 12


class Forgetful(Walk):
    """Stays at its end, and at a loaded state."""

    def __iter__(self) -> Iterator[int]:
        while self.at < self.rows:
            self.at += 1
            yield self.at - 1


KINDS: dict[str, Callable[[], Any]] = {
    "walk": lambda: Walk(ROWS),
    "forgetful": lambda: Forgetful(ROWS),
    "hf": lambda: hf(list(range(ROWS))).to_iterable_dataset(num_shards=1),  # more are shuffled by their epoch
    "hf generator": lambda: datasets.IterableDataset.from_generator(lambda: ({"a": row} for row in range(ROWS))),
}


def values(batch: Any) -> list[int]:
    return [value_of(row) for row in batch]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_loaders_over_one_object_each_have_all_rows(kind: str, seed: int) -> None:
    draw = random.Random(seed)
    shared = KINDS[kind]()
    loaders: list[DataLoader[Any]] = [DataLoader(shared, batch_size=draw.randint(1, 4), tail="short") for _ in range(3)]
    told: list[list[int]] = [[] for _ in loaders]
    for _ in range(40):
        number = draw.randrange(len(loaders))
        loader = loaders[number]
        if draw.random() < 0.2:  # another one takes its place
            state = json.loads(json.dumps(loader.state_dict()))
            loader = loaders[number] = DataLoader(shared, batch_size=draw.randint(1, 4), tail="short")
            loader.load_state_dict(state)
        batch = next(loader, None)
        told[number] += [] if batch is None else values(batch)
    for rows in told:
        assert rows == [row % ROWS for row in range(len(rows))]


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_loader_begins_at_the_start_and_not_where_another_one_stopped(kind: str) -> None:
    shared = KINDS[kind]()
    next(DataLoader(shared, batch_size=2))
    fresh: DataLoader[Any] = DataLoader(shared, batch_size=3)
    for _ in range(2):
        assert [row for batch in fresh for row in values(batch)] == list(range(ROWS))


def test_a_position_that_the_program_sets_is_a_start() -> None:
    walk = Forgetful(ROWS)
    assert values(next(DataLoader(walk, batch_size=4))) == [0, 1, 2, 3]
    walk.load_state_dict({"at": 6})
    later: DataLoader[Any] = DataLoader(walk, batch_size=2)
    for _ in range(2):
        assert [row for batch in later for row in values(batch)] == list(range(6, ROWS))


@pytest.mark.parametrize("make", [lambda: iter(range(8)), lambda: (row for row in range(8)), lambda: zip(range(8))])
def test_one_iterator_for_several_passes_is_refused(make: Callable[[], Any]) -> None:
    class Once:
        def __init__(self) -> None:
            self.rows = make()

        def __iter__(self) -> Iterator[Any]:
            rows: Iterator[Any] = self.rows
            return rows

    once = Once()
    loader: DataLoader[Any] = DataLoader(once, batch_size=2)
    next(loader)
    loader.set_epoch(1)
    with pytest.raises(TypeError, match="only once"):
        next(loader)
    with pytest.raises(TypeError, match="only once"):
        next(DataLoader(once, batch_size=2))
