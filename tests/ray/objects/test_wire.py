"""The wire form of tasks: what lists of many rows may hold, although nobody looks through them first."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch

from twinkle_ray.objects.wire import task_from_wire, task_to_wire
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
