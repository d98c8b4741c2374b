"""`reads=` by the constructor's arguments: each component says which columns its functions read."""

from __future__ import annotations

import pickle
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import explain, get, on, remote_class, remote_function, session
from twinkle_remote.errors import UnreadColumnError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def _named(constructor: Mapping[str, Any]) -> Sequence[str] | None:
    return None if constructor["every"] else constructor["names"]


@remote_class()
class Summing:
    def __init__(self, names: Sequence[str], every: bool = False) -> None:
        self.names = names

    @remote_function(dispatch="slice_dp", collect="flatten", reads=_named, adds="total")
    def add(self, rows: dict[str, list[int]], also: str | None = None) -> dict[str, list[int]]:
        read = [*self.names, *([also] if also else [])]
        return {**rows, "total": [sum(row) for row in zip(*(rows[name] for name in read), strict=True)]}

    @remote_function(dispatch="slice_dp", collect="flatten", reads=_named)
    def sizes(self, rows: Any) -> list[int]:
        return [len(row) for row in rows] if isinstance(rows, list) else rows[self.names[0]]


class Below(Summing):
    def add(self, rows: dict[str, list[int]], also: str | None = None) -> dict[str, list[int]]:
        return super().add(rows, also)


ROWS = {"a": [1, 2, 3], "b": [10, 20, 30], "c": [5, 5, 5]}
MESH = DeviceMesh.from_sizes(dp_size=2, device_type="cpu")


@pytest.mark.parametrize("kind", [Summing, Below])
@pytest.mark.parametrize("mode", ["plain", "local", "threads"])
def test_each_component_says_what_it_reads(mode: str, kind: type[Summing]) -> None:
    def check(make: Any) -> None:
        component = make(["a", "b"])
        assert get(component.add(ROWS)) == {**ROWS, "total": [11, 22, 33]}
        assert get(component.add(component.add(ROWS)))["total"] == [11, 22, 33]
        with pytest.raises(KeyError, match="reads") as raised:
            get(component.add(ROWS, also="c"))
        assert "'c'" in str(raised.value)
        other = make(["c"], every=True)
        assert get(other.add(ROWS, "a"))["total"] == [6, 7, 8]
        assert get(component.sizes([[1], [1, 2]])) == [1, 2]  # what has no columns is read whole

    if mode == "plain":
        check(kind)
        return
    if mode == "local":
        with session("local"):
            check(kind)
        return
    with session("threads", groups=[DeviceGroup("group", 2, "CPU")]):
        check(partial(on("group", MESH).create, kind))


def test_handles_that_travel_and_explain_know_the_columns() -> None:
    with session("threads", groups=[DeviceGroup("group", 2, "CPU")]):
        one = on("group", MESH).create(Summing, names=("a",))
        for handle in (one, pickle.loads(pickle.dumps(one))):
            assert "reads 'a'" in str(explain(handle.add, ROWS))
            with pytest.raises(KeyError, match="reads"):
                get(handle.add(ROWS, also="b"))
        assert "reads" not in str(explain(on("group", MESH).create(Summing, ["a"], True).add, ROWS))


def test_a_copy_of_an_object_reads_everything() -> None:
    assert copy(Summing(["a"])).add(ROWS, also="b")["total"] == [11, 22, 33]
    with pytest.raises(UnreadColumnError):
        Summing(["a"]).add(ROWS, also="b")


def test_rules_that_cannot_be_known_at_construction_are_refused() -> None:
    def add(self: object, rows: dict[str, list[int]], also: str = "") -> dict[str, list[int]]:
        return rows

    with pytest.raises(TypeError, match=r"reads=.*constructor"):
        remote_function("slice_dp", collect="flatten", reads=lambda constructor, also: "a")(add)
    with pytest.raises(TypeError, match=r"adds=.*constructor"):
        remote_function("slice_dp", collect="flatten", adds=lambda constructor: "a")(add)

    class Names:
        @remote_function(dispatch="slice_dp", collect="flatten", reads=lambda constructor: constructor)
        def add(self, rows: dict[str, list[int]], constructor: str = "a") -> list[int]:  # its own argument
            return rows[constructor]

    assert Names().add(ROWS) == ROWS["a"]
    with pytest.raises(ValueError, match="reads="):
        Summing(3)  # type: ignore[arg-type]  # no names
