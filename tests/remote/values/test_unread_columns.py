"""A column that `reads=` leaves out is never missing in silence, in any container and under any of its operations."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections import ChainMap, OrderedDict, UserDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from tests.remote.values.kinds_of_rows import Columns, Grid, Table
from transformers import BatchEncoding, BatchFeature
from transformers.modeling_outputs import SequenceClassifierOutput

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import (
    concat,
    get,
    on,
    register_splitter,
    remote_class,
    remote_function,
    select,
    session,
    take,
)
from twinkle_remote.errors import DispatchError, UnreadColumnError
from twinkle_remote.protocol.tables import Reads
from twinkle_remote.values.left_out import LeftOut
from twinkle_remote.values.rows import holds_marks
from twinkle_remote.values.wanted_columns import only_read

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROWS = 5


class OwnFrame(pd.DataFrame):  # type: ignore[misc]  # pandas has no types here
    @property
    def _constructor(self) -> type[OwnFrame]:
        return OwnFrame


class Held:
    """Columns of a library that twinkle does not know: a program teaches the type."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self.columns = columns

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __getitem__(self, name: str) -> Any:
        return self.columns[name]

    def get(self, name: str) -> Any:
        return self.columns.get(name)


class HeldSplitter:
    """Without `leave_out` and `marks`, which are optional."""

    def length(self, value: Held) -> int:
        return len(next(iter(value.columns.values())))

    def slice(self, value: Held, start: int, stop: int) -> Held:
        return Held({name: column[start:stop] for name, column in value.columns.items()})

    def concat(self, values: Sequence[Held]) -> Held:
        return Held({name: [one for value in values for one in value[name]] for name in values[0].columns})

    def columns(self, value: Held) -> list[str]:
        return list(value.columns)

    def select(self, value: Held, names: Sequence[str]) -> Held:
        return Held({name: value[name] for name in names})

    def join(self, values: Sequence[Held]) -> Held:
        return Held({name: column for value in values for name, column in value.columns.items()})


register_splitter(Held, HeldSplitter())


def columns(start: int, n: int) -> dict[str, Any]:
    return {"ids": list(range(start, start + n)), "wide": [10 * one for one in range(start, start + n)]}


def arrays(start: int, n: int) -> dict[str, Any]:
    return {name: np.array(column, "int64") for name, column in columns(start, n).items()}


def frame(start: int, n: int) -> dict[str, Any]:
    return {**columns(start, n), "more": np.arange(start, start + n) * 0.5}


def output(start: int, n: int) -> Any:
    ids, wide = (torch.tensor(column, dtype=torch.int64) for column in columns(start, n).values())
    return SequenceClassifierOutput(loss=ids, logits=wide)


KINDS: dict[str, Callable[[int, int], Any]] = {
    "dict": columns,
    "arrays": arrays,
    "tensors": lambda start, n: {name: torch.tensor(column) for name, column in columns(start, n).items()},
    "ordered": lambda start, n: OrderedDict(columns(start, n)),
    "default": lambda start, n: defaultdict(list, columns(start, n)),
    "user dict": lambda start, n: UserDict(columns(start, n)),
    "table": lambda start, n: Table(columns(start, n)),
    "grid": lambda start, n: Grid({**columns(start, n), "x": list(range(n))}),
    "proxy": lambda start, n: MappingProxyType(columns(start, n)),
    "chain map": lambda start, n: ChainMap(columns(start, n)),
    "dataclass": lambda start, n: Columns(*columns(start, n).values()),
    "nested": lambda start, n: {"ids": columns(start, n)["ids"], "wide": pd.DataFrame(columns(start, n))},
    "encoding": lambda start, n: BatchEncoding(columns(start, n)),
    "feature": lambda start, n: BatchFeature(arrays(start, n)),
    "output": output,
    "pandas": lambda start, n: pd.DataFrame(frame(start, n)),
    "own pandas": lambda start, n: OwnFrame(frame(start, n)),
    "polars": lambda start, n: pl.DataFrame(frame(start, n)),
    "arrow": lambda start, n: pa.table(frame(start, n)),
    "arrow batch": lambda start, n: pa.record_batch(frame(start, n)),
    "dataset": lambda start, n: datasets.Dataset.from_dict(columns(start, n)),
    "registered": lambda start, n: Held(columns(start, n)),
}
NAMES = {"dataclass": ("first", "second"), "output": ("loss", "logits")}
FRAMES = (pd.DataFrame, pl.DataFrame, pa.Table, pa.RecordBatch)


def names_of(kind: str) -> tuple[str, str]:
    """The column that is read, and the one that is not."""
    return NAMES.get(kind, ("ids", "wide"))


Access = Callable[[Any, str], Any]
ACCESSES: dict[str, Access] = {
    "item": lambda rows, name: rows[name],
    "attribute": lambda rows, name: getattr(rows, name),
    "get": lambda rows, name: rows.get(name),
    "get or other": lambda rows, name: rows.get(name, 0),
    "is none": lambda rows, name: rows.get(name) is None,
    "pop": lambda rows, name: copy.copy(rows).pop(name),
    "setdefault": lambda rows, name: copy.copy(rows).setdefault(name, 0),
    "in": lambda rows, name: name in rows,
    "in items": lambda rows, name: name in list(rows.keys()),
    "has attribute": lambda rows, name: hasattr(rows, name),
    "length": lambda rows, name: len(rows),
    "list": lambda rows, name: list(rows),
    "keys": lambda rows, name: list(rows.keys()),
    "values": lambda rows, name: list(rows.values()),
    "items": lambda rows, name: list(rows.items()),
    "to dict": lambda rows, name: rows.to_dict(),
    "to dict of lists": lambda rows, name: rows.to_dict(orient="list"),
    "to pydict": lambda rows, name: rows.to_pydict(),
    "to pylist": lambda rows, name: rows.to_pylist(),
    "to tuple": lambda rows, name: rows.to_tuple(),
    "to pandas": lambda rows, name: rows.to_pandas(),
    "to polars": lambda rows, name: rows.to_polars(),
    "to arrow": lambda rows, name: rows.to_arrow(),
    "to numpy": lambda rows, name: rows.to_numpy(),
    "data": lambda rows, name: dict(rows.data),
    "dict of": lambda rows, name: dict(rows),
    "unpacked": lambda rows, name: {**rows},
    "merged by operator": lambda rows, name: rows | {"new": 1},
    "as dict": lambda rows, name: dataclasses.asdict(rows),
    "as tuple": lambda rows, name: dataclasses.astuple(rows),
    "replaced": lambda rows, name: dataclasses.replace(rows, note="other"),
    "fields": lambda rows, name: [getattr(rows, field.name) for field in dataclasses.fields(rows)],
    "columns": lambda rows, name: list(rows.columns),
    "column names": lambda rows, name: list(rows.column_names),
    "schema": lambda rows, name: list(rows.schema.names),
    "shape": lambda rows, name: tuple(rows.shape),
    "column": lambda rows, name: rows.column(name),
    "get column": lambda rows, name: rows.get_column(name),
    "features": lambda rows, name: list(rows.features),
    "first row": lambda rows, name: rows[0],
    "row by name": lambda rows, name: rows.iloc[0].to_dict(),
    "rows by name": lambda rows, name: list(rows.iter_rows(named=True)),
    "sum": lambda rows, name: rows.sum().to_dict(),
    "sum of polars": lambda rows, name: rows.sum(),
    "sum of numbers": lambda rows, name: rows.sum(numeric_only=True),
    "of a type": lambda rows, name: rows.select_dtypes("number"),
    "selected": lambda rows, name: rows.select([name]),
    "selected columns": lambda rows, name: rows.select_columns([name]),
    "filtered": lambda rows, name: rows.filter(items=[name]),
    "dropped": lambda rows, name: rows.drop(columns=name),
    "dropped in polars": lambda rows, name: rows.drop(name),
    "removed": lambda rows, name: rows.remove_columns([name]),
    "renamed": lambda rows, name: rows.rename(columns={name: "other"}),
    "assigned": lambda rows, name: rows.assign(new=1),
    "with columns": lambda rows, name: rows.with_columns(new=1),
    "merged": lambda rows, name: rows.merge(rows, on="ids"),
    "joined": lambda rows, name: rows.join(rows, on="ids"),
    "described": lambda rows, name: rows.describe(),
    "texts of names": lambda rows, name: [str(one) for one in rows],
    "columns of a frame": lambda rows, name: pd.DataFrame(dict(rows)),
    "columns of polars": lambda rows, name: pl.DataFrame(dict(rows)),
    "columns of arrow": lambda rows, name: pa.table(dict(rows)),
    "columns of a dataset": lambda rows, name: datasets.Dataset.from_dict(dict(rows)).to_dict(),
    "tensor": lambda rows, name: torch.tensor(rows[name]),
    "array": lambda rows, name: np.asarray(rows[name]),
    "equal to others": lambda rows, name: bool(take(rows, [0, 1]) == take(rows, [0, 0])),
    "equal to parts": lambda rows, name: bool(take(rows, slice(0, 1)) == take(rows, slice(1, 2))),
    "selected by twinkle": lambda rows, name: select(rows, name),
}
CHANGES: dict[str, Access] = {
    "copy": lambda rows, name: copy.copy(rows),
    "deep copy": lambda rows, name: copy.deepcopy(rows),
    "own copy": lambda rows, name: rows.copy(),
    "pickle": lambda rows, name: pickle.loads(pickle.dumps(rows)),
    "take": lambda rows, name: take(rows, [2, 0, 2]),
    "slice": lambda rows, name: take(rows, slice(1, 4)),
    "concat": lambda rows, name: concat([rows, rows]),
    "select": lambda rows, name: select(rows, *dict.fromkeys((name, "ids"))),
    "frames": lambda rows, name: pd.concat([rows, rows]),
    "polars": lambda rows, name: pl.concat([rows, rows]),
    "arrow": lambda rows, name: pa.concat_tables([rows, rows]),
    "datasets": lambda rows, name: datasets.concatenate_datasets([rows, rows]),
    "updated": lambda rows, name: {**rows, "new": 1},
}


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
    whole, name = KINDS[kind](0, _ROWS), names_of(kind)[1]
    narrowed, offered = narrow(kind, whole), 0
    for label, access in ACCESSES.items():
        assert holds(narrowed, whole, access, name), (label, outcome_of(partial(access, narrowed, name)))
        offered += not isinstance(outcome_of(partial(access, whole, name)), Exception)
    assert offered >= 3, "the kind offers some of these"


@pytest.mark.parametrize("kind", KINDS)
def test_so_it_is_after_any_operations(kind: str) -> None:
    choose, name = Random(kind), names_of(kind)[1]
    for _ in range(20 if holds_marks(type(KINDS[kind](0, 1))) else 2):
        whole = KINDS[kind](choose.randrange(9), _ROWS)
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
    whole, name = KINDS[kind](3, _ROWS), names_of(kind)[0]
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
    whole = KINDS[kind](2, _ROWS)
    for rows in (whole, stage.same(whole)):
        for label in ("item", "get", "in", "list", "columns", "values", "shape", "to dict"):
            assert get(stage.read(rows, kind, label)) == [True] * _ROWS, label


@pytest.mark.parametrize(
    "kind", ["dict", "user dict", "pandas", "polars", "arrow", "arrow batch", "dataset", "registered"]
)
def test_a_column_that_another_call_has_added_is_not_missing(stage: Any, kind: str) -> None:
    whole = KINDS[kind](2, _ROWS)
    for rows in (whole, stage.same(whole)):
        more = stage.add(rows, column="added", made=with_added)
        assert get(stage.read(more, kind, "added")) == [True] * _ROWS


def test_rows_are_counted_by_the_narrowest_column() -> None:
    rows = {"wide": np.zeros((4, 1000)), "narrow": np.zeros(4), "wider": torch.zeros(4, 2000)}
    kept = only_read(rows, Reads(("other",), "Stage.read"), keeps_rows=True)
    assert [name for name, part in kept.items() if not isinstance(part, LeftOut)] == ["narrow"]
