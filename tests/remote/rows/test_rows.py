"""Rows: cutting and joining are inverse, for every supported type; and what is not cut or joined says why."""

from __future__ import annotations

import random
from collections import OrderedDict, UserDict
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.remote.rows.kinds_of_rows import KNOWN, WRAPPERS, Pair, same

from twinkle_remote import CollectError, DispatchError, register_rows
from twinkle_remote.rows.concat import concat
from twinkle_remote.rows.cut import costs_of, rows_of, take
from twinkle_remote.rows.records import parts_of, rebuild
from twinkle_remote.rows.reduce import equal
from twinkle_remote.rows.row_types import row_type_of
from twinkle_remote.tables import operations as tables

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@pytest.mark.filterwarnings("ignore")  # torch warns that jagged tensors are new
@pytest.mark.parametrize("kind", KNOWN)
def test_each_kind_is_cut_joined_and_taken_in_any_order(kind: str) -> None:
    choose = random.Random(kind)
    for rows, wrapper in product((0, 1, 5), WRAPPERS.values()):
        value = wrapper(KNOWN[kind](list(range(rows))))
        assert rows_of(value) == rows and type(take(value, range(0))) is type(value)
        cuts = [0, *sorted(choose.choices(range(rows + 1), k=3)), rows]
        parts = [take(value, range(a, b)) for a, b in pairwise(cuts)]
        assert [rows_of(part) for part in parts] == [b - a for a, b in pairwise(cuts)]
        assert same(concat(parts), value)
        order = choose.sample(range(rows), rows)
        back = tuple([order.index(row) for row in range(rows)])
        assert same(take(take(value, tuple(order)), back), value)
        own = None if row_type_of(type(value)) else parts_of(value)
        assert own is None or same(rebuild(value, list(own.values())), value)
        assert same(value, wrapper(KNOWN[kind](list(range(rows))))), "the input is as it was"


NAMES = ("prompt", "answer", "tests", "tools")
DICTS = st.lists(st.dictionaries(st.sampled_from(NAMES), st.integers(0, 9), min_size=1), max_size=9)


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Columns of rows that are mappings; None where a row has no such key, as datasets has it."""
    return {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}


@given(DICTS, st.lists(st.integers(0, 9), max_size=4), st.sampled_from([dict, OrderedDict, UserDict]), st.booleans())
def test_mappings_of_other_columns_have_none_in_those_that_they_lack(
    rows: list[dict[str, int]], cuts: list[int], kind: Callable[..., Any], nested: bool
) -> None:
    edges = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    parts: list[Any] = [kind(columns_of(rows[a:b])) for a, b in pairwise(edges)]
    want: Any = kind(columns_of(rows))
    if nested:
        parts = [{"more": part, "row": list(range(a, b))} for part, (a, b) in zip(parts, pairwise(edges), strict=True)]
        want = {"more": want, "row": list(range(len(rows)))}
    joined = concat(parts)
    assert joined == want and type(joined) is type(want) and list(joined) == list(want)
    assert concat([concat(parts[:2]), *parts[2:]]) == want, "in any steps"
    assert concat([take(joined, range(2)), take(joined, range(2, len(rows)))]) == want


@pytest.mark.parametrize("value", [range(3, 9, 2), KNOWN["dataset"]([3, 5, 7])["x"]])
def test_some_rows_of_a_range_or_of_a_column_of_a_dataset_are_a_list(value: Any) -> None:
    assert rows_of(value) == 3 and take(value, range(1, 3)) == [5, 7] and take(value, (2, 0)) == [7, 3]
    assert concat([value, value]) == [3, 5, 7, 3, 5, 7] and concat([take(value, range(1)), value]) == [3, 3, 5, 7]


def test_slices_of_arrays_and_tensors_are_views() -> None:
    array, tensor = np.zeros((4, 2)), torch.zeros(4, 2)
    take({"a": array}, range(1, 3))["a"][:] = 1
    take(tensor, range(1, 3))[:] = 1
    assert array[1:3].all() and tensor[1:3].all() and not array[0].any() and not tensor[3].any()


def test_types_of_arrays_stay_beside_parts_without_rows() -> None:
    parts = [np.zeros((0, 3), dtype="float64"), np.ones((2, 3), dtype="float32")]
    assert concat(parts).dtype == np.float32
    joined: Any = concat([{"a": [1], "b": np.array([2])}, {}, {"a": []}])
    assert joined["a"] == [1] and joined["b"].tolist() == [2]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["a", "b"], "result: flatten joins rows, and str has none"),
        ([{"a": [1], "s": 1}, {"a": [2], "s": 2}], r"result\['s'\]: flatten joins rows, and int has none"),
        ([{"a": [1]}, {"b": np.array([2])}], "None stands for what is missing"),
        ([{"a": [3, 4]}, {"a": [1], "b": np.array([2])}], "no such column.*ndarray"),
        ([{"a": [1], "b": {"c": [2]}}, {"a": [3]}], "no such column.*dict"),
        ([{"a": [1], "loss": 2.0}, {"a": [3]}], "no such column.*float"),
        ([{"a": [1], "b": [1]}, {"loss": 2.0}], "has none|no rows"),
        ([{"a": [1]}, None], "dict of a, another NoneType"),
        ([[1], (2,)], "values of one type, got list and tuple"),
        ([[1], None], "values of one type, got list and NoneType"),
        ([np.zeros((1, 2)), np.zeros((1, 3))], r"shapes are \[\(1, 2\), \(1, 3\)\]"),
        ([torch.zeros(1, 2), torch.zeros(1, 3)], r"shapes are \[\(1, 2\), \(1, 3\)\]"),
        ([torch.zeros(1), torch.zeros(1, dtype=torch.float64)], "their types are"),
        ([pd.DataFrame({"x": [1]}), pd.DataFrame({"y": [1]})], "their columns are"),
        ([pl.DataFrame({"x": [1]}), pl.DataFrame({"y": [1]})], "do not join"),
        ([pa.table({"x": [1]}), pa.table({"x": ["a"]})], "do not join"),
        ([pd.DataFrame({"x": [1]}), pa.table({"x": [1]})], "values of one type"),
    ],
)
def test_what_does_not_join_says_why(values: list[Any], message: str) -> None:
    with pytest.raises(CollectError, match=message):
        concat(values)


def test_ragged_columns_name_each_part() -> None:
    with pytest.raises(DispatchError, match=r"batch\['a'\] has 2, batch\['b'\].left has 1"):
        rows_of({"a": [1, 2], "b": Pair([1], [2])}, "batch")


def test_nan_is_equal_to_nan() -> None:
    assert equal(float("nan"), float("nan")) and concat([{"r": [1], "x": float("nan")}, {"r": [2], "x": float("nan")}])
    assert not equal(1, 1.0) and not equal(np.zeros(2), np.zeros(3))
    assert equal(np.array([np.nan]), np.array([np.nan]))


class Columns:
    """Columns of one length: a class that is somebody else's."""

    def __init__(self, **held: list[int]) -> None:
        self.held = held

    def __len__(self) -> int:
        return len(next(iter(self.held.values())))


@register_rows
class Held(Columns):
    """The same, with all functions of a row type as methods."""

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


class Longer(Held):
    pass


def test_the_row_type_of_a_class_and_of_its_subclasses_is_its_methods_or_functions() -> None:
    assert rows_of(object()) is None
    register_rows(
        Columns,
        take=lambda value, rows: Columns(**take(value.held, rows)),
        concat=lambda values: Columns(**concat([value.held for value in values])),
        columns=lambda value: list(value.held),
        select=lambda value, names: Columns(**{name: value.held[name] for name in map(str, names)}),
        join=lambda values: Columns(**{name: one for value in values for name, one in value.held.items()}),
        costs=lambda value: [float(one) for one in value.held["x"]],
    )
    assert list(costs_of({"in": Columns(x=[1, 2])}) or ()) == [1, 2] and costs_of(Held(x=[1])) is None
    for kind in (Held, Longer, Columns):
        value = kind(x=[1, 2, 3], y=[4, 5, 6])
        again = concat([take(value, range(1)), take(value, range(1, 3))])
        assert (
            rows_of({"in": value}) == 3
            and again.held == value.held
            and type(again) is (Held if kind is Longer else kind)
        )
        assert tables.take(value, [2, 0]).held == {"x": [3, 1], "y": [6, 4]}
        assert tables.select(value, "y").held == {"y": [4, 5, 6]}
        assert tables.join(value, kind(z=[7, 8, 9])).held == {**value.held, "z": [7, 8, 9]}
        with pytest.raises(KeyError):
            tables.select(value, "z")


@pytest.mark.parametrize(("given", "missing"), [("take", "concat"), ("concat", "take"), ("columns", "select")])
def test_a_row_type_has_all_its_functions(given: str, missing: str) -> None:
    functions: dict[str, Any] = {given: len, **({"take": len, "concat": len} if given == "columns" else {})}
    with pytest.raises(TypeError, match=f"has no {missing}"):
        register_rows(type("Own", (), {}), **functions)
