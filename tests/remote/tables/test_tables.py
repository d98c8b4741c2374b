"""`get(op(x)) == op(get(x))` for random programs of operations on tables, and what they refuse."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from tests.remote.rows.kinds_of_rows import same
from tests.remote.tables.table_programs import MESHES, Maker, Program, Rows

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import concat, get, join, on, select, session, stats, submit, take
from twinkle_remote.errors import DispatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PROGRAMS = int(os.environ.get("TWINKLE_TEST_TABLES", "80"))


@pytest.fixture(scope="module", params=["local", "threads"])
def makers(request: pytest.FixtureRequest) -> Iterator[list[Any]]:
    meshes = {name: DeviceMesh.from_sizes(**sizes) for name, sizes in MESHES.items()}
    with session(request.param, groups=[DeviceGroup(name, mesh.world_size, "CPU") for name, mesh in meshes.items()]):
        yield [on(name, mesh).create(Maker) for name, mesh in meshes.items()]


def test_operations_on_lazy_values_are_those_on_their_values(makers: list[Any]) -> None:
    for number in range(_PROGRAMS):
        Program(random.Random(number), makers).run()
    assert not any(one.bytes_fetched for one in stats())  # all lies in this process


def test_a_table_has_what_its_values_were_when_it_was_made(makers: list[Any]) -> None:
    numbers, array, rows = [5, 6], np.arange(2), [0, 1]
    made, columns = submit(makers[0].same, [1, 2]), submit(makers[0].same, {"ids": [1, 2]})
    tables = [concat([made, numbers]), take(made, rows), join(columns, {"more": numbers, "array": array})]
    numbers[:], array[:], rows[:] = [0, 0], 7, [1, 1]
    assert get(tables[:2]) == [[1, 2, 5, 6], [1, 2]]
    assert {name: list(column) for name, column in get(makers[1].same(tables[2])).items()} == {
        "ids": [1, 2],
        "more": [5, 6],
        "array": [0, 1],
    }


@pytest.mark.parametrize("rows", [[], slice(0, 0)])
@pytest.mark.parametrize(
    ("left", "right"),
    [
        (np.array([0.5, 1.5]), np.array([1, 2])),
        (torch.tensor([0.5, 1.5]), torch.tensor([1, 2])),
        ({"ids": [1], "x": np.array([0.5])}, {"ids": [2], "x": np.array([7])}),
        (pl.DataFrame({"ids": [1.5]}), pl.DataFrame({"ids": [1]})),
        (pa.table({"ids": [1], "x": [2]}), pa.table({"x": [1], "ids": [2]})),
    ],
)
def test_a_table_without_rows_changes_no_type_of_others(makers: list[Any], left: Any, right: Any, rows: Any) -> None:
    lazy_left, lazy_right = (submit(makers[0].same, value) for value in (left, right))
    orders: list[Callable[[Any, Any], Any]] = [
        lambda one, other: concat([take(one, rows), other]),
        lambda one, other: concat([other, take(one, rows)]),
        lambda one, other: concat([take(one, rows), take(other, rows)]),
        lambda one, other: concat([take(concat([one, one]), rows), other]),
    ]
    for order in orders:
        plain, lazy = order(left, right), order(lazy_left, lazy_right)
        assert same(get(lazy), plain)
        assert same(get(makers[1].whole(lazy)), plain)


def test_labels_of_frames_are_data(makers: list[Any]) -> None:
    frame = pd.DataFrame({"ids": [1, 2]})
    lazy = submit(makers[0].same, frame)

    def grown(value: Any) -> Any:
        twice = concat([value, value])
        return concat([concat([twice, take(twice, [3, 0])]), concat([twice, value])])

    for found in (get(grown(lazy)), get(makers[1].whole(grown(lazy)))):
        assert list(found.index) == list(grown(frame).index) == [0, 1, 0, 1, 1, 0, 0, 1, 0, 1, 0, 1]
    table = lazy
    for _ in range(600):  # a table that grows has no depth
        table = concat([table, lazy])
    assert list(get(table).index) == [0, 1] * 601


def test_what_was_not_selected_of_a_dataclass_is_none_where_it_is_selected_later(makers: list[Any]) -> None:
    rows = Rows([1, 2], [3, 4])
    for value in (rows, submit(makers[0].same, rows)):
        assert get(select(select(value, "scores"), "ids", "scores")) == Rows(None, [3, 4], cast("Any", None))
    with pytest.raises(KeyError, match="'b'"):
        get(select(select(submit(makers[0].same, {"a": [1], "b": [2]}), "a"), "b"))


@pytest.mark.parametrize(
    ("rows", "kind"),
    [(1, TypeError), ([True, False], TypeError), ([0.5], TypeError), ("ab", TypeError), ({1}, TypeError)],
)
def test_what_names_no_rows_is_refused(makers: list[Any], rows: Any, kind: type[Exception]) -> None:
    for value in ([1, 2, 3], submit(makers[0].same, [1, 2, 3])):
        with pytest.raises(kind, match="rows"):
            take(value, rows)


@pytest.mark.parametrize("lazily", [False, True])
def test_errors_name_the_values_and_their_kind(makers: list[Any], lazily: bool) -> None:
    def given(value: Any) -> Any:
        return submit(makers[0].same, value) if lazily else value

    cases: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: take(given([1, 2]), [2]), IndexError, "2"),
        (lambda: select(given({"a": [1]}), "b"), KeyError, "'b'"),
        (lambda: select(given([{"a": 1}]), "a"), TypeError, "columns"),
        (lambda: concat([given([1]), given(np.array([1]))]), ValueError, "list"),
    ]
    for act, kind, word in cases:
        with pytest.raises(kind, match=word) as raised:
            get(act())
        assert isinstance(raised.value, DispatchError)
    with pytest.raises(ValueError, match="at least one"):
        concat([])
    with pytest.raises(TypeError, match="at least one"):
        select(given({"a": [1]}))
