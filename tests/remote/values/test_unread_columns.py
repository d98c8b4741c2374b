"""A column that `reads=` leaves out is never missing in silence, in any container and under any of its operations."""

from __future__ import annotations

import copy
import dataclasses
from collections import ChainMap, UserDict
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from tests.remote.values.kinds_of_columns import ACCESSES, CHANGES, FRAMES, KINDS, ROWS, Access, Held, columns, names_of

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import (
    get,
    on,
    remote_class,
    remote_function,
    session,
)
from twinkle_remote.errors import DispatchError, UnreadColumnError
from twinkle_remote.protocol.tables import Reads
from twinkle_remote.values.left_out import LeftOut
from twinkle_remote.values.rows import holds_marks
from twinkle_remote.values.wanted_columns import only_read

if TYPE_CHECKING:
    from collections.abc import Iterator


def outcome_of(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except Exception as error:  # of any library
        return error


def same(found: Any, whole: Any) -> bool:
    """Whether a value is what it is with all columns; a mark may stand in place of each of them."""
    if isinstance(found, LeftOut):
        return True
    if isinstance(whole, Exception) or type(found) is not type(whole):
        return type(found) is type(whole)
    if isinstance(found, Held):
        return same(found.columns, whole.columns)
    if isinstance(found, Mapping):
        names = list(found.keys())
        return names == list(whole.keys()) and all(same(found[name], whole[name]) for name in names)
    if dataclasses.is_dataclass(found):
        return all(same(getattr(found, one.name), getattr(whole, one.name)) for one in dataclasses.fields(found))
    if isinstance(found, list | tuple):
        return len(found) == len(whole) and all(map(same, found, whole))
    if isinstance(found, datasets.Dataset):
        return bool(found.to_dict() == whole.to_dict())
    if isinstance(found, np.ndarray | torch.Tensor):
        return found.shape == whole.shape and bool((found == whole).all())
    if hasattr(found, "equals"):
        return bool(found.equals(whole))
    if hasattr(found, "__iter__") and not isinstance(found, str):
        return list(found) == list(whole)
    return bool(found == whole)


def narrow(kind: str, value: Any) -> Any:
    return only_read(value, Reads(names_of(kind)[:1], "Stage.read"))


def holds(narrowed: Any, whole: Any, access: Access, name: str) -> bool:
    """The law: an operation says that the column is not read, or gives what it gives with all columns."""
    found, expected = outcome_of(partial(access, narrowed, name)), outcome_of(partial(access, whole, name))
    return isinstance(found, UnreadColumnError) or same(found, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_each_access_has_the_column_or_says_that_it_is_not_read(kind: str) -> None:
    whole, name = KINDS[kind](0, ROWS), names_of(kind)[1]
    narrowed, offered = narrow(kind, whole), 0
    for label, access in ACCESSES.items():
        assert holds(narrowed, whole, access, name), (label, outcome_of(partial(access, narrowed, name)))
        offered += not isinstance(outcome_of(partial(access, whole, name)), Exception)
    assert offered >= 3, "the kind offers some of these"


@pytest.mark.parametrize("kind", KINDS)
def test_so_it_is_after_any_operations(kind: str) -> None:
    choose, name = Random(kind), names_of(kind)[1]
    for _ in range(20 if holds_marks(type(KINDS[kind](0, 1))) else 2):
        whole = KINDS[kind](choose.randrange(9), ROWS)
        narrowed, steps = narrow(kind, whole), []
        for step in choose.choices(list(CHANGES), k=choose.randint(1, 3)):
            expected = outcome_of(partial(CHANGES[step], whole, name))
            if isinstance(expected, Exception):
                continue
            found = outcome_of(partial(CHANGES[step], narrowed, name))
            steps.append(step)
            if isinstance(found, UnreadColumnError):
                break
            assert same(found, expected), (steps, found)
            narrowed, whole = found, expected
        else:
            for label, access in ACCESSES.items():
                assert holds(narrowed, whole, access, name), (steps, label)


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_is_read_is_as_without_the_word(kind: str) -> None:
    whole, name = KINDS[kind](3, ROWS), names_of(kind)[0]
    narrowed = narrow(kind, whole)
    for label in ("item", "attribute", "get", "in", "column", "get column"):
        found, expected = (outcome_of(partial(ACCESSES[label], value, name)) for value in (narrowed, whole))
        assert same(found, expected) and not isinstance(found, LeftOut), label


def test_marks_of_rows_that_may_differ_are_not_equal() -> None:
    one, other = (narrow("dict", {"ids": [1], "wide": [wide]}) for wide in (1, 2))
    with pytest.raises(UnreadColumnError):
        assert one != other
    assert one == one and one == copy.copy(one)


class Strict(UserDict[str, Any]):
    """Columns that are lists."""

    def __setitem__(self, name: str, column: Any) -> None:
        if not isinstance(column, list):
            raise TypeError(f"{name} is a {type(column).__name__}")
        super().__setitem__(name, column)


def test_a_container_that_refuses_marks_is_refused_by_name() -> None:
    for value in (Strict(columns(0, 3)), ChainMap({"ids": [7, 8]}, columns(0, 2))):
        with pytest.raises(DispatchError, match=r"reads= of Stage\.read") as raised:
            narrow("dict", value)
        assert type(value).__name__ in str(raised.value)


READ = ("ids", "first", "loss")


@remote_class()
class Stage:
    @remote_function(dispatch="slice_dp", collect="flatten")
    def same(self, rows: Any) -> Any:
        return rows

    @remote_function(dispatch="slice_dp", collect="flatten", adds=lambda column: column)
    def add(self, rows: Any, column: str, made: Callable[[Any], Any]) -> Any:
        return made(rows)

    @remote_function(
        dispatch="slice_dp", collect="flatten", replicate=("kind", "label"), reads=("ids", "first", "loss")
    )
    def read(self, rows: Any, kind: str, label: str) -> list[bool]:
        read, name = names_of(kind)
        ids = ACCESSES["attribute" if kind == "dataclass" else "item"](rows, read)
        ids = [int(one) for one in (ids.to_pylist() if isinstance(ids, pa.Array | pa.ChunkedArray) else ids)]
        whole = KINDS[kind](ids[0], len(ids))
        if isinstance(rows, pd.DataFrame):
            whole.index = rows.index
        if label == "added":
            return [holds(rows, with_added(whole), ACCESSES["item"], "added")] * len(ids)
        return [holds(rows, whole, ACCESSES[label], name)] * len(ids)


def with_added(rows: Any) -> Any:
    """Rows with a column that is ten times another."""
    added = [10 * int(one) for one in (rows["ids"].to_pylist() if isinstance(rows, FRAMES[2:]) else rows["ids"])]
    if isinstance(rows, Held):
        return Held({**rows.columns, "added": added})
    if isinstance(rows, pd.DataFrame):
        return rows.assign(added=added)
    if isinstance(rows, pl.DataFrame):
        return rows.with_columns(added=pl.Series(added))
    if isinstance(rows, pa.Table | pa.RecordBatch):
        return rows.append_column("added", pa.array(added))
    if isinstance(rows, datasets.Dataset):
        return rows.add_column("added", added)
    more = copy.copy(rows)
    more["added"] = added
    return more


@pytest.fixture(scope="module", params=["no session", "local", "threads"])
def stage(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "no session":
        yield Stage()
    else:
        with session(request.param, groups=[DeviceGroup("a", 2, "CPU")]):
            yield on("a", DeviceMesh.from_sizes(dp_size=2)).create(Stage)


@pytest.mark.parametrize("kind", KINDS)
def test_so_it_is_in_calls_of_plain_rows_and_of_lazy_ones(stage: Any, kind: str) -> None:
    whole = KINDS[kind](2, ROWS)
    for rows in (whole, stage.same(whole)):
        for label in ("item", "get", "in", "list", "columns", "values", "shape", "to dict"):
            assert get(stage.read(rows, kind, label)) == [True] * ROWS, label


@pytest.mark.parametrize(
    "kind", ["dict", "user dict", "pandas", "polars", "arrow", "arrow batch", "dataset", "registered"]
)
def test_a_column_that_another_call_has_added_is_not_missing(stage: Any, kind: str) -> None:
    whole = KINDS[kind](2, ROWS)
    for rows in (whole, stage.same(whole)):
        more = stage.add(rows, column="added", made=with_added)
        assert get(stage.read(more, kind, "added")) == [True] * ROWS


def test_rows_are_counted_by_the_narrowest_column() -> None:
    rows = {"wide": np.zeros((4, 1000)), "narrow": np.zeros(4), "wider": torch.zeros(4, 2000)}
    kept = only_read(rows, Reads(("other",), "Stage.read"), keeps_rows=True)
    assert [name for name, part in kept.items() if not isinstance(part, LeftOut)] == ["narrow"]
