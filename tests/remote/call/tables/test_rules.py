"""`reads=` and `adds=` as functions of other arguments: random programs beside plain functions, and what is refused.

`TWINKLE_TEST_RULES=10000 pytest tests/remote/call/tables/test_rules.py` runs as many in each mode.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

import pytest
from tests.remote.call.tables.rule_programs import Ruled, RuleProgram
from tests.remote.call.tables.table_programs import MESHES

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import Replicate, get, on, remote_class, remote_function, session, submit

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROGRAMS = int(os.environ.get("TWINKLE_TEST_RULES", "40"))
_ROWS = {"ids": [1, 2, 3], "x": [4, 5, 6]}


@remote_class()
class Named(Ruled):
    @remote_function(dispatch="all", collect="first")
    def name(self, name: str) -> str:
        return name

    @remote_function(dispatch="slice_dp", collect="flatten", adds=lambda column: column)
    def named(self, rows: dict[str, Any], column: str = "made") -> dict[str, Any]:
        return {**rows, column: [0] * len(rows["ids"])}

    @remote_function(dispatch="slice_dp", collect="flatten", adds=lambda columns, **others: (*columns, *others))
    def several(self, rows: dict[str, Any], columns: list[str], **others: Any) -> dict[str, Any]:
        return {**rows, **{name: [len(name)] * len(rows["ids"]) for name in (*columns, *others)}}


@pytest.fixture(scope="module", params=["local", "threads"])
def makers(request: pytest.FixtureRequest) -> Iterator[tuple[list[Any], list[int]]]:
    meshes = {name: DeviceMesh.from_sizes(**sizes) for name, sizes in MESHES.items()}
    with session(request.param, groups=[DeviceGroup(name, mesh.world_size, "CPU") for name, mesh in meshes.items()]):
        ranks = [1 if request.param == "local" else mesh.data_world_size for mesh in meshes.values()]
        yield [on(name, mesh).create(Named) for name, mesh in meshes.items()], ranks


def test_functions_with_rules_give_what_they_give_without_a_session(makers: tuple[list[Any], list[int]]) -> None:
    for number in range(_PROGRAMS):
        RuleProgram(random.Random(number), *makers).run()


def test_a_rule_is_given_the_values_of_lazy_arguments(makers: tuple[list[Any], list[int]]) -> None:
    for maker in makers[0]:
        for rows in (_ROWS, submit(maker.same, _ROWS)):
            assert list(get(maker.named(rows, submit(maker.name, "long name")))) == ["ids", "x", "long name"]
            assert list(get(maker.named(rows, column=submit(maker.name, "x")))) == ["ids", "x"]
            made = maker.several(rows, Replicate([submit(maker.name, "one")]), two=1)
            assert list(get(made)) == ["ids", "x", "one", "two"]


def test_a_rule_of_an_argument_that_is_divided_is_refused_by_name(makers: tuple[list[Any], list[int]]) -> None:
    for maker in makers[0]:
        for columns in (["a", "b", "c"], submit(maker.same, ["a", "b", "c"])):
            with pytest.raises(TypeError, match=r"columns.*replicate="):
                maker.several(_ROWS, columns)
