"""A source may write to a row after it gave it, and a batch may hold a row twice: no row is changed without a word."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from twinkle_data import DataLoader, Shards
from twinkle_mesh import DeviceMesh

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from twinkle_data.order.tails import Tail


@dataclass
class Row:
    ids: list[int] = field(default_factory=list)


class Thing:
    """No dataclass; it is compared only if it is given again."""

    def __init__(self) -> None:
        self.ids: list[int] = []


def _array(row: np.ndarray, number: int) -> Any:
    row[:] = number
    return row


def _tensor(row: torch.Tensor, number: int) -> Any:
    return {"inner": [row.fill_(number)]}


def _dict(row: dict[str, Any], number: int) -> Any:
    row |= {"ids": [number], "number": number}
    return row


def _object(row: Any, number: int) -> Any:
    row.ids = [number]
    return row


KINDS: dict[str, tuple[Callable[[], Any], Callable[[Any, int], Any]]] = {
    "array": (lambda: np.zeros(2), _array),
    "tensor": (lambda: torch.zeros(2), _tensor),
    "dict": (dict, _dict),
    "dataclass": (Row, _object),
    "object": (Thing, _object),
}


def number_of(row: Any) -> int:
    row = row["inner"][0] if isinstance(row, dict) and "inner" in row else row
    row = row["ids"] if isinstance(row, dict) else getattr(row, "ids", row)
    return int(row[0])


class Source:
    """Rows of one kind; `buffers` objects are filled again in turn, with None each row has its own."""

    def __init__(self, kind: str, buffers: int | None, length: int) -> None:
        make, self.write = KINDS[kind]
        self.make = make
        self.buffers = None if buffers is None else [make() for _ in range(buffers)]
        self.given = 0
        self.length = length

    def row(self, number: int) -> Any:
        self.given += 1
        taken = self.make() if self.buffers is None else self.buffers[self.given % len(self.buffers)]
        return self.write(taken, number)


class Indexed(Source):
    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.row(index)


class Stream(Source):
    def __iter__(self) -> Iterator[Any]:
        return map(self.row, range(self.length))


def dataset_of(place: str, kind: str, buffers: int | None, length: int) -> Any:
    if place in ("indexed", "stream"):
        return (Indexed if place == "indexed" else Stream)(kind, buffers, length)
    sources = [Source(kind, buffers, length) for _ in range(2)]

    def start(shard: int, offset: int) -> Iterator[Any]:
        return map(sources[shard].row, range(shard * length + offset, (shard + 1) * length))

    return Shards(start, 2, [length] * 2 if place == "shards" else None)


@pytest.mark.parametrize("seed", range(40))
def test_rows_come_once_or_the_source_is_refused(seed: int) -> None:
    draw = Random(seed)
    place = draw.choice(["indexed", "stream", "shards", "stream of shards"])
    kind, length = draw.choice(sorted(KINDS)), draw.randint(6, 20)
    buffers = draw.choice([None, 1, 1, 2, 3])
    options: dict[str, Any] = {"batch_size": draw.randint(1, 4), "shuffle": place != "stream" and draw.random() < 0.5}
    options["on_error"] = draw.choice(["raise", "skip"]) if place in ("indexed", "shards") else "raise"
    loader: DataLoader[Any] = DataLoader(dataset_of(place, kind, buffers, length), tail="short", **options)
    found = []
    try:
        for batch in loader:
            found += [number_of(row) for row in batch]
    except ValueError as error:
        if buffers is None or "after it gave it" not in str(error):
            raise
        return
    assert sorted(found) == list(range(length * (2 if "shards" in place else 1)))


def _changed(rows: Any) -> list[list[int]]:
    for row in rows:
        row["ids"].append(row.pop("number"))
    return [row["ids"] for row in rows]


@pytest.mark.parametrize("place", ["list", "indexed", "stream", "shards", "stream of shards"])
@pytest.mark.parametrize("tail", ["pad", "short"])
def test_a_collate_fn_may_change_rows_that_also_fill_up(place: str, tail: Tail) -> None:
    for length in (5, 6, 9):
        dataset: Any = [_dict({}, row) for row in range(length)]
        dataset = dataset if place == "list" else dataset_of(place, "dict", None, length)
        mesh = DeviceMesh.from_sizes(dp_size=4)
        loader: DataLoader[Any] = DataLoader(dataset, batch_size=4, device_mesh=mesh, tail=tail, collate_fn=_changed)
        found = []
        for batch in loader:
            assert loader.info is not None
            found += [row for row, valid in zip(batch, loader.info.valid, strict=True) if valid]
        assert sorted(found) == [[row, row] for row in range(len(found))]
        assert len(found) == length * (2 if "shards" in place else 1)
