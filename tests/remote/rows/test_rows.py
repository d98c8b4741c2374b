"""Rows: cutting and joining are inverse, for every supported type."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from twinkle_mesh import balanced_slice
from twinkle_remote import CollectError, DispatchError, register_rows
from twinkle_remote.rows.concat import concat
from twinkle_remote.rows.cut import costs_of, rows_of, take
from twinkle_remote.rows.records import parts_of, rebuild
from twinkle_remote.rows.reduce import equal
from twinkle_remote.tables import operations as tables

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@given(data=st.data(), rows=st.integers(0, 9), parts=st.integers(1, 5))
def test_joining_what_was_cut_gives_it_back(
    data: st.DataObject,
    rows: int,
    parts: int,
    batches: Callable[[int], st.SearchStrategy[Any]],
    same: Callable[[Any, Any], bool],
) -> None:
    value = data.draw(batches(rows))
    assert rows_of(value) == rows
    cut = [balanced_slice(rows, parts, index) for index in range(parts)]
    taken = [take(value, range(part.start, part.stop)) for part in cut]
    assert [rows_of(part) for part in taken] == [part.stop - part.start for part in cut]
    assert same(concat(taken), value)


@given(data=st.data(), rows=st.integers(0, 4))
def test_rebuilding_from_the_own_columns_is_a_copy(
    data: st.DataObject,
    rows: int,
    batches: Callable[[int], st.SearchStrategy[Any]],
    same: Callable[[Any, Any], bool],
) -> None:
    value = data.draw(batches(rows))
    parts = parts_of(value)
    if parts is not None:
        again = rebuild(value, list(parts.values()))
        assert same(again, value) and again is not value


def test_slices_of_arrays_and_tensors_are_views() -> None:
    array, tensor = np.zeros((4, 2)), torch.zeros(4, 2)
    take({"a": array}, range(1, 3))["a"][:] = 1
    take(tensor, range(1, 3))[:] = 1
    assert array[1:3].all() and tensor[1:3].all() and not array[0].any() and not tensor[3].any()


@pytest.mark.parametrize("kind", [OrderedDict, UserDict, lambda parts: defaultdict(list, parts)])
def test_kinds_of_dict_stay_what_they_are(kind: Callable[[Any], Any]) -> None:
    value = kind({"a": [1, 2, 3], "b": ([4, 5, 6], "c")})
    parts = [take(value, range(1)), take(value, range(1, 3))]
    assert [type(part) for part in parts] == [type(value)] * 2 and parts[1] == kind({"a": [2, 3], "b": ([5, 6], "c")})
    assert concat(parts) == value and type(concat(parts)) is type(value)


def test_fields_that_are_not_set_are_left_alone() -> None:
    @dataclass
    class Partial:
        rows: list[int]
        late: int = field(init=False)

    value = Partial([1, 2])
    assert take(value, range(1)).rows == [1] and not hasattr(take(value, range(1)), "late")
    assert concat([take(value, range(1)), take(value, range(1, 2))]).rows == [1, 2]


def test_types_of_arrays_stay() -> None:
    parts = [np.zeros((0, 3), dtype="float64"), np.ones((2, 3), dtype="float32")]
    assert concat(parts).dtype == np.float32


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["a", "b"], "result: flatten joins rows, and str has none"),
        ([{"a": [1], "s": 1}, {"a": [2], "s": 2}], r"result\['s'\]: flatten joins rows, and int has none"),
        ([{"a": [1]}, {"b": np.array([2])}], "None stands for what is missing"),
        ([{"a": [1]}, None], "dict of a, another NoneType"),
        ([[1], (2,)], "values of one type, got list and tuple"),
        ([[1], None], "values of one type, got list and NoneType"),
        ([np.zeros((1, 2)), np.zeros((1, 3))], r"shapes are \[\(1, 2\), \(1, 3\)\]"),
        ([torch.zeros(1, 2), torch.zeros(1, 3)], r"shapes are \[\(1, 2\), \(1, 3\)\]"),
    ],
)
def test_what_does_not_join_says_why(values: list[Any], message: str) -> None:
    with pytest.raises(CollectError, match=message):
        concat(values)


def test_ragged_columns_name_each_part() -> None:
    with pytest.raises(DispatchError, match=r"batch\['a'\] has 2, batch\['b'\].left has 1"):
        rows_of({"a": [1, 2], "b": _pair([1], [2])}, "batch")


def _pair(left: list[int], right: list[int]) -> object:
    from typing import NamedTuple

    class Pair(NamedTuple):
        left: list[int]
        right: list[int]

    return Pair(left, right)


def test_nan_is_equal_to_nan() -> None:
    assert equal(float("nan"), float("nan")) and concat([{"r": [1], "x": float("nan")}, {"r": [2], "x": float("nan")}])
    assert not equal(1, 1.0) and not equal(np.zeros(2), np.zeros(3))
    assert equal(np.array([np.nan]), np.array([np.nan]))


def test_other_containers_can_be_registered() -> None:
    class Table:
        def __init__(self, rows: Sequence[int]) -> None:
            self.rows = list(rows)

    class Longer(Table):
        pass

    assert rows_of(Table([1, 2, 3])) is None and rows_of(Longer([1])) is None
    register_rows(
        Table,
        length=lambda value: len(value.rows),
        take=lambda value, rows: type(value)([value.rows[row] for row in rows]),
        concat=lambda values: type(values[0])([row for value in values for row in value.rows]),
        costs=lambda value: [float(row) for row in value.rows],
    )
    for kind in (Table, Longer):
        value = {"table": kind([1, 2, 3])}
        assert rows_of(value) == 3 and list(costs_of(value) or ()) == [1, 2, 3]
        parts = [take(value, range(2)), take(value, (2,))]
        assert concat(parts)["table"].rows == [1, 2, 3] and type(concat(parts)["table"]) is kind


@register_rows
class Held:
    """Columns of one length, with all functions of a row type as methods."""

    def __init__(self, **held: list[int]) -> None:
        self.held = held

    def __len__(self) -> int:
        return len(next(iter(self.held.values())))

    def take(self, rows: Sequence[int]) -> Held:
        return Held(**{name: [column[row] for row in rows] for name, column in self.held.items()})

    @staticmethod
    def concat(values: Sequence[Held]) -> Held:
        return Held(**{name: [one for value in values for one in value.held[name]] for name in values[0].held})

    def columns(self) -> list[str]:
        return list(self.held)

    def select(self, names: Sequence[str]) -> Held:
        return Held(**{name: self.held[name] for name in names})

    @staticmethod
    def join(values: Sequence[Held]) -> Held:
        return Held(**{name: column for value in values for name, column in value.held.items()})


def test_a_class_has_its_row_type_as_methods() -> None:
    value = Held(x=[1, 2, 3], y=[4, 5, 6])
    again = concat([take(value, range(1)), take(value, range(1, 3))])
    assert again.held == value.held and tables.take(value, [2, 0]).held == {"x": [3, 1], "y": [6, 4]}
    assert tables.select(value, "y").held == {"y": [4, 5, 6]}
    assert tables.join(value, Held(z=[7, 8, 9])).held == {**value.held, "z": [7, 8, 9]}


class Pair:
    """Two columns of a class that is somebody else's."""

    def __init__(self, held: dict[str, list[int]]) -> None:
        self.held = held


def _select(value: Pair, names: Sequence[Any]) -> Pair:
    return Pair({name: value.held[name] for name in names})


def test_columns_of_another_class_are_functions() -> None:
    register_rows(
        Pair,
        length=lambda value: rows_of(value.held),
        take=lambda value, rows: Pair(take(value.held, rows)),
        concat=lambda values: Pair(concat([value.held for value in values])),
        columns=lambda value: list(value.held),
        select=_select,
        join=lambda values: Pair({name: one for value in values for name, one in value.held.items()}),
    )
    value = Pair({"x": [1, 2], "y": [3, 4]})
    again = tables.join(tables.select(value, "y"), tables.select(value, "x"))
    assert tables.take(again, [1]).held == {"y": [4], "x": [2]}
    with pytest.raises(KeyError):
        tables.select(value, "z")


@pytest.mark.parametrize(("given", "missing"), [("take", "concat"), ("concat", "take")])
def test_a_row_type_has_all_its_functions(given: str, missing: str) -> None:
    functions: dict[str, Any] = {given: lambda *given: None}
    with pytest.raises(TypeError, match=f"has no {missing}"):
        register_rows(type("Own", (), {}), **functions)
    functions = {"take": len, "concat": len, "columns": len}
    with pytest.raises(TypeError, match="has no select"):
        register_rows(type("Own", (), {}), **functions)
