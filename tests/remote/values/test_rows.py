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
from twinkle_remote import CollectError, DispatchError, register_splitter
from twinkle_remote.values.columns import columns, rebuild
from twinkle_remote.values.join import join
from twinkle_remote.values.rows import equal, rows_of, take

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
    taken = [take(value, part.start, part.stop) for part in cut]
    assert [rows_of(part) for part in taken] == [part.stop - part.start for part in cut]
    assert same(join(taken), value)


@given(data=st.data(), rows=st.integers(0, 4))
def test_rebuilding_from_the_own_columns_is_a_copy(
    data: st.DataObject,
    rows: int,
    batches: Callable[[int], st.SearchStrategy[Any]],
    same: Callable[[Any, Any], bool],
) -> None:
    value = data.draw(batches(rows))
    parts = columns(value)
    if parts is not None:
        again = rebuild(value, list(parts.values()))
        assert same(again, value) and again is not value


def test_slices_of_arrays_and_tensors_are_views() -> None:
    array, tensor = np.zeros((4, 2)), torch.zeros(4, 2)
    take({"a": array}, 1, 3)["a"][:] = 1
    take(tensor, 1, 3)[:] = 1
    assert array[1:3].all() and tensor[1:3].all() and not array[0].any() and not tensor[3].any()


@pytest.mark.parametrize("kind", [OrderedDict, UserDict, lambda parts: defaultdict(list, parts)])
def test_kinds_of_dict_stay_what_they_are(kind: Callable[[Any], Any]) -> None:
    value = kind({"a": [1, 2, 3], "b": (4, 5, 6)})
    parts = [take(value, 0, 1), take(value, 1, 3)]
    assert [type(part) for part in parts] == [type(value)] * 2 and parts[1] == kind({"a": [2, 3], "b": (5, 6)})
    assert join(parts) == value and type(join(parts)) is type(value)


def test_fields_that_are_not_set_are_left_alone() -> None:
    @dataclass
    class Partial:
        rows: list[int]
        late: int = field(init=False)

    value = Partial([1, 2])
    assert take(value, 0, 1).rows == [1] and not hasattr(take(value, 0, 1), "late")
    assert join([take(value, 0, 1), take(value, 1, 2)]).rows == [1, 2]


def test_masks_and_types_of_arrays_stay() -> None:
    masked = np.ma.array([1, 2, 3, 4], mask=[True, False, False, True])
    joined = join([take(masked, 0, 2), take(masked, 2, 4)])
    assert isinstance(joined, np.ma.MaskedArray)
    assert joined.mask.tolist() == masked.mask.tolist()
    parts = [np.zeros((0, 3), dtype="float64"), np.ones((2, 3), dtype="float32")]
    assert join(parts).dtype == np.float32


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
        join(values)


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
    assert equal(float("nan"), float("nan")) and join([{"r": [1], "x": float("nan")}, {"r": [2], "x": float("nan")}])
    assert not equal(1, 1.0) and not equal(np.zeros(2), np.zeros(3))
    assert equal(np.array([np.nan]), np.array([np.nan]))


def test_other_containers_can_be_registered() -> None:
    class Table:
        def __init__(self, rows: Sequence[int]) -> None:
            self.rows = list(rows)

    class TableSplitter:
        def length(self, value: Table) -> int:
            return len(value.rows)

        def slice(self, value: Table, start: int, stop: int) -> Table:
            return Table(value.rows[start:stop])

        def concat(self, values: Sequence[Table]) -> Table:
            return Table([row for value in values for row in value.rows])

    assert rows_of(Table([1, 2, 3])) is None
    register_splitter(Table, TableSplitter())
    value = {"table": Table([1, 2, 3])}
    assert rows_of(value) == 3
    assert join([take(value, 0, 2), take(value, 2, 3)])["table"].rows == [1, 2, 3]
