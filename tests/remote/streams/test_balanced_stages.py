"""Stages whose rows go to ranks by their costs: streams deliver rows in the order of the source all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import get, on, remote_class, remote_function, session, stream

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def out_of_order(costs: Sequence[float]) -> list[float]:
    return [7 * row % 5 + 1 for row in range(len(costs))]


@remote_class()
class Doubles:
    @remote_function(dispatch="slice_dp", collect="flatten", balance=out_of_order)
    def plain(self, rows: list[int]) -> list[int]:
        return [2 * row for row in rows]

    @remote_function(dispatch="slice_dp", collect="flatten", balance=out_of_order, collective=True)
    def together(self, rows: list[int]) -> list[int]:
        return [2 * row for row in rows]

    @remote_function(dispatch="slice_dp", collect="flatten", balance=out_of_order)
    async def later(self, rows: list[int]) -> list[int]:
        return [2 * row for row in rows]


@pytest.fixture(scope="module")
def components() -> Iterator[tuple[Any, Any]]:
    with session("threads", groups=[DeviceGroup("two", 2, "CPU"), DeviceGroup("three", 3, "CPU")]):
        meshes = {"two": DeviceMesh.from_sizes(dp_size=2), "three": DeviceMesh.from_sizes(dp_size=3)}
        two, three = (on(name, mesh).create(Doubles) for name, mesh in meshes.items())
        yield two, three


@pytest.mark.parametrize("ahead", [0, 3, 12])
@pytest.mark.parametrize("names", [["plain"], ["together"], ["later"], ["plain", "together", "later"]])
def test_rows_come_in_the_order_of_the_source(components: tuple[Any, Any], names: list[str], ahead: int) -> None:
    stages = [getattr(components[place % 2], name) for place, name in enumerate(names)]
    source = [list(range(first, first + 5)) for first in range(0, 25, 5)]
    with stream(source, *stages, ahead=ahead) as batches:
        found = [row for batch in batches for row in get(batch)]
    assert found == [row * 2 ** len(names) for row in range(25)]
