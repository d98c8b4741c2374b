"""Results of several types that are joined."""

from __future__ import annotations

from typing import Any

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import get, on, remote_class, remote_function, session

GROUPS = [DeviceGroup("four", 4, "CPU"), DeviceGroup("two", 2, "CPU")]


@remote_class()
class Maker:
    @remote_function(dispatch="slice_dp", collect="flatten")
    def numbers(self, rows: list[int]) -> Any:
        return range(3)

    @remote_function(dispatch="slice_dp", collect="flatten")
    def take(self, rows: Any) -> Any:
        return rows


def test_numbers_are_joined_whether_a_range_holds_them_or_a_list() -> None:
    with session("threads", groups=GROUPS):
        four = on("four", DeviceMesh.from_sizes(dp_size=4)).create(Maker)
        two = on("two", DeviceMesh.from_sizes(dp_size=2)).create(Maker)
        made = two.numbers([1, 2])
        assert list(get(four.take(made))) == list(get(made)) == [0, 1, 2, 0, 1, 2]
