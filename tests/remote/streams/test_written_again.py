"""A source may write to what it gave: a stream that reads ahead has rows and states of the time of reading."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import get, on, remote_class, remote_function, session, stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

GROUPS = [DeviceGroup("two", 2, "CPU")]


@remote_class()
class Maker:
    @remote_function(dispatch="slice_dp", collect="flatten")
    def make(self, rows: Any) -> Any:
        return rows


@dataclass
class Columns:
    ids: list[int]


class Row:
    def __init__(self) -> None:
        self.number = 0


def _lists(numbers: Sequence[int], kept: list[Any]) -> Any:
    kept[:] = numbers
    return kept


def _dicts(numbers: Sequence[int], kept: dict[str, Any]) -> Any:
    kept.setdefault("ids", [])[:] = numbers
    return kept


def _columns(numbers: Sequence[int], kept: Columns) -> Any:
    kept.ids = list(numbers)
    return kept


def _array(numbers: Sequence[int], kept: np.ndarray) -> Any:
    kept[: len(numbers)] = numbers
    return kept[: len(numbers)]


def _tensor(numbers: Sequence[int], kept: torch.Tensor) -> Any:
    kept[: len(numbers)] = torch.tensor(numbers, dtype=kept.dtype)
    return {"ids": kept[: len(numbers)]}


def _rows(numbers: Sequence[int], kept: list[dict[str, int]]) -> Any:
    for row, number in zip(kept, numbers, strict=False):
        row["number"] = number
    return kept[: len(numbers)]


def _objects(numbers: Sequence[int], kept: list[Row]) -> Any:
    for row, number in zip(kept, numbers, strict=False):
        row.number = number
    return kept[: len(numbers)]


WRITERS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[], Any]]] = {
    "lists": (_lists, list),
    "dicts": (_dicts, dict),
    "dataclasses": (_columns, lambda: Columns([])),
    "arrays": (_array, lambda: np.zeros(4, np.int64)),
    "tensors": (_tensor, lambda: torch.zeros(4, dtype=torch.int64)),
    "dicts of rows": (_rows, lambda: [{"number": 0} for _ in range(4)]),
    "objects": (_objects, lambda: [Row() for _ in range(4)]),
}


class Writer:
    """A source that has one buffer and one state."""

    def __init__(self, kind: str, sizes: Sequence[int]) -> None:
        self.write, make = WRITERS[kind]
        self.buffer, self.sizes = make(), sizes
        self.state: dict[str, list[int]] = {"at": [0]}

    def __iter__(self) -> Iterator[Any]:
        while self.state["at"][0] < len(self.sizes):
            at = self.state["at"][0]
            self.state["at"][0] += 1
            first = sum(self.sizes[:at])
            yield self.write(range(first, first + self.sizes[at]), self.buffer)
        self.state["at"][0] = 0

    def state_dict(self) -> dict[str, list[int]]:
        return self.state

    def load_state_dict(self, state: dict[str, list[int]]) -> None:
        self.state = state


def _numbers(value: Any) -> list[int]:
    found = get(value)
    found = found["ids"] if isinstance(found, dict) else getattr(found, "ids", found)
    found = found.tolist() if hasattr(found, "tolist") else list(found)
    return [row["number"] if isinstance(row, dict) else getattr(row, "number", row) for row in found]


@pytest.mark.parametrize("mode", ["local", "threads"])
@pytest.mark.parametrize("kind", WRITERS)
def test_rows_and_states_are_those_of_the_time_of_reading(kind: str, mode: str) -> None:
    choose = Random(f"{kind} {mode}")
    with session(mode, groups=GROUPS):
        make = on("two", DeviceMesh.from_sizes(dp_size=2)).create(Maker).make
        for _ in range(6):
            sizes = [choose.randint(0, 4) for _ in range(choose.randint(1, 6))]
            options: dict[str, Any] = {"ahead": choose.choice([0, 1, 4, 9]), "rows": choose.choice([None, 1, 3])}
            if options["ahead"]:
                options["chunk"] = choose.choice([None, 1, 2])
            with stream(Writer(kind, sizes), make, **options) as batches:
                seen: list[int] = []
                for batch in batches:
                    seen += _numbers(batch)
                    if choose.random() < 0.4:
                        break
            with stream(Writer(kind, sizes), make, **options) as rest:
                rest.load_state_dict(batches.state_dict())
                seen += [number for batch in rest for number in _numbers(batch)]
            expected = list(range(sum(sizes)))
            assert seen in (expected, expected + expected), (sizes, options)  # an end that was not read begins anew
