"""Copies for ranks that share a process: what holds a position is each rank's own."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from twinkle_data import DataLoader
from twinkle_data.loading.own_copy import own_copies
from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import on, remote_class, remote_function, session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NUMBER = 0
LOCK = threading.Lock()


class Walk:
    """An iterable that keeps its position on itself."""

    def __init__(self, rows: int = 16) -> None:
        self.rows, self.at, self.lock = rows, 0, LOCK

    def __iter__(self) -> Iterator[int]:
        while self.at < self.rows:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


WALK = Walk()


def from_global() -> Walk:
    return WALK


def count() -> int:
    global NUMBER
    NUMBER += 1
    return NUMBER


def through_another() -> Walk:
    return from_global()


def counter() -> tuple[Callable[[], int], Callable[[], int]]:
    at = 0

    def step() -> int:
        nonlocal at
        at += 1
        return at

    return step, lambda: at


def test_what_reading_does_not_change_stays_one_object() -> None:
    seen: list[int] = []
    values = ([1, "a"], (1, 2), range(3), np.arange(3), {"a": [1, 2]}, lambda rows: len(rows), len, Walk, None)
    assert all(map(lambda one, copy: one is copy, values, own_copies(*values)))

    def note(row: int) -> None:
        seen.append(row)

    (copy,) = own_copies(note)
    copy(3)
    assert seen == [3]


def test_functions_are_copied_with_what_they_use() -> None:
    step, peek = own_copies(counter())[0]
    assert (step(), step(), peek()) == (1, 2, 2)
    for function in (from_global, through_another):
        (copy,) = own_copies(function)
        assert copy() is not WALK
        assert copy() is copy()
    (own,) = own_copies(count)
    assert (own(), own(), NUMBER) == (1, 2, 0)
    (partial,) = own_copies(functools.partial(Walk.state_dict, WALK))
    assert partial.args[0] is not WALK
    (method,) = own_copies(WALK.state_dict)
    assert method.__self__ is not WALK
    assert method.__self__.lock is LOCK


def test_what_two_values_share_stays_one_object_of_the_copies() -> None:
    walk = Walk()
    one, other = own_copies(walk, functools.partial(print, walk))
    assert one is other.args[0] is not walk


def test_what_cannot_be_copied_is_refused_by_name() -> None:
    rows = (row for row in range(3))

    class Reader:
        def __init__(self, source: object) -> None:
            self.source = source

    for value, name in (
        (Reader(rows), "Reader"),
        (lambda: rows, "lambda"),
        (functools.partial(next, rows), "partial"),
    ):
        with pytest.raises(TypeError, match=name):
            own_copies([1], value)


@pytest.mark.parametrize("dataset", [Walk(), from_global, through_another, lambda: WALK, Walk])
def test_a_stream_is_read_whole_and_resumed_on_threads(dataset: Any) -> None:
    mesh = DeviceMesh.from_sizes(dp_size=2)
    with session("threads", groups=[DeviceGroup("data", 2, "CPU")]):

        def made() -> DataLoader[Any]:
            return DataLoader(dataset, batch_size=4, device_mesh=mesh, remote_group="data")

        assert [row for batch in made() for row in batch] == list(range(16))
        loader = made()
        steps = iter(loader)
        first = [row for _ in range(2) for row in next(steps)]
        again = made()
        again.load_state_dict(loader.state_dict())
        assert first + [row for batch in again for row in batch] == list(range(16))


@remote_class()
class Reader:
    @remote_function(dispatch="all", collect="none", lazy_collect=False)
    def rows(self, build: Any) -> list[int]:
        loader = DataLoader(build(), batch_size=4)
        return [row for batch in loader for row in batch]


def test_ranks_that_read_one_object_are_refused() -> None:
    with session("threads", groups=[DeviceGroup("readers", 2, "CPU")]):
        reader = on("readers", DeviceMesh.from_sizes(dp_size=2)).create(Reader)
        with pytest.raises(ValueError, match="one Walk object"):
            reader.rows(from_global)
        found: Any = reader.rows(Walk)
        assert sorted(row for rows in found for row in rows) == list(range(16))
