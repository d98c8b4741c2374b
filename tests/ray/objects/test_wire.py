"""The wire form of tasks: what lists of many rows may hold, although nobody looks through them first."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch

import twinkle_remote as twinkle
from twinkle_mesh import DeviceMesh
from twinkle_ray.objects.wire import task_from_wire, task_to_wire
from twinkle_remote.errors import DispatchError
from twinkle_remote.protocol import Share, Task, UncheckedError

Pair = namedtuple("Pair", ["left", "right"])
ROWS = [{"id": n, "ids": [n] * 4, "more": {"x": (n, None, {1, 2}, b"a", bytearray(b"b"))}} for n in range(40)]


def unchecked(rows: list[Any]) -> Task:
    return Task("method", "i", "Echo.same", "same", (rows,), share=Share(1, 2), unchecked=True)


def test_plain_rows_travel_unchecked() -> None:
    wire, size = task_to_wire(unchecked(ROWS))
    assert isinstance(wire, bytes) and size == len(wire)
    assert task_from_wire(wire) == unchecked(ROWS)


@pytest.mark.parametrize("odd", [np.float64(1), np.zeros(2), torch.ones(2), Pair(1, 2), object(), iter([]), print, int])
def test_rows_with_other_values_are_looked_through(odd: Any) -> None:
    with pytest.raises(UncheckedError):
        task_to_wire(unchecked([*ROWS, {"a": [odd]}]))


def test_rows_that_are_nested_too_deeply_are_looked_through() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(UncheckedError):
        task_to_wire(unchecked([*ROWS, deep]))
    while deep:  # freed without a recursion
        deep = deep.pop()


@twinkle.remote_class()
class Echo:
    @twinkle.remote_function(dispatch="slice_dp", collect="flatten")
    def same(self, rows: list[Any], other: Any = None) -> list[Any]:
        return rows

    @twinkle.remote_function(dispatch="slice_dp", collect="flatten")
    def stored(self, rows: list[Any], values: Any) -> list[Any]:
        assert len(rows) == len(values)
        return [(row["id"], float(value.sum())) for row, value in zip(rows, values, strict=True)]


@pytest.mark.ray
def test_what_stands_in_rows_arrives_as_ever(ray_session: None) -> None:
    four = twinkle.on("four", DeviceMesh.from_sizes(dp_size=2, tp_size=2)).create(Echo)
    assert four.same(ROWS) == ROWS
    rows = [{**row, "pair": Pair(row["id"], 1)} for row in ROWS]
    assert four.same(rows) == rows
    made = twinkle.submit(four.same, ROWS)
    got = four.same([*ROWS, {"lazy": made}, {"stop": twinkle.Replicate(["a", "b"])}])
    assert got[:40] == ROWS and got[40] == {"lazy": ROWS} and got[41] == {"stop": ["a", "b"]}
    tensors = torch.arange(40.0 * 65536).reshape(40, -1)
    for mixed in (ROWS, [{**row, "array": np.ones(3)} for row in ROWS]):
        assert four.stored(mixed, tensors) == [(n, float(tensors[n].sum())) for n in range(40)]
    with pytest.raises(DispatchError, match="runs once"):
        four.same([*ROWS, {"a": iter([])}])
    circle: dict[str, Any] = {"id": 1}
    circle["self"] = circle
    with pytest.raises(DispatchError, match="contains itself"):
        four.same([*ROWS, circle, *ROWS])
