"""Rows that were repeated to pad a call: their results are dropped, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import CollectError, get, on, remote_class, remote_function, session

GROUPS = [DeviceGroup("four", 4, "CPU"), DeviceGroup("two", 2, "CPU")]


@remote_class()
class Padded:
    @remote_function(dispatch="slice_dp", collect="flatten", uneven="pad")
    def same(self, rows: list[int]) -> list[int]:
        return rows

    @remote_function(dispatch="slice_dp", collect="flatten", uneven="pad")
    def twice(self, rows: list[int]) -> list[int]:
        return [row for row in rows for _ in range(2)]

    @remote_function(dispatch="slice_dp", collect="flatten", uneven="pad")
    def columns(self, rows: list[int]) -> tuple[list[int], list[str]]:
        return self.twice(rows), list(map(str, rows))

    @remote_function(dispatch="slice_dp", collect="flatten")
    def numbers(self, rows: list[int]) -> Any:
        return range(3)

    @remote_function(dispatch="slice_dp", collect="flatten")
    def take(self, rows: Any) -> Any:
        return rows


def test_results_that_are_more_than_the_rows_are_all_there_if_none_was_repeated() -> None:
    rows = [1, 2, 3, 4]
    with session("threads", groups=GROUPS):
        four = on("four", DeviceMesh.from_sizes(dp_size=4)).create(Padded)
        two = on("two", DeviceMesh.from_sizes(dp_size=2)).create(Padded)
        twice = [1, 1, 2, 2, 3, 3, 4, 4]
        assert get(four.twice(rows)) == twice
        assert get(two.take(four.twice(rows))) == twice
        assert get(four.columns(rows)) == (twice, ["1", "2", "3", "4"])


@pytest.mark.parametrize("length", [1, 2, 3, 5, 6, 7])
def test_results_of_repeated_rows_are_dropped_or_refused(length: int) -> None:
    rows = list(range(length))
    with session("threads", groups=GROUPS):
        four = on("four", DeviceMesh.from_sizes(dp_size=4)).create(Padded)
        two = on("two", DeviceMesh.from_sizes(dp_size=2)).create(Padded)
        assert get(four.same(rows)) == get(two.take(four.same(rows))) == rows
        for made in (four.twice(rows), two.take(four.twice(rows)), four.columns(rows)):
            with pytest.raises(CollectError, match="one row for each"):
                get(made)


def test_numbers_are_joined_whether_a_range_holds_them_or_a_list() -> None:
    with session("threads", groups=GROUPS):
        four = on("four", DeviceMesh.from_sizes(dp_size=4)).create(Padded)
        two = on("two", DeviceMesh.from_sizes(dp_size=2)).create(Padded)
        made = two.numbers([1, 2])
        assert list(get(four.take(made))) == list(get(made)) == [0, 1, 2, 0, 1, 2]
