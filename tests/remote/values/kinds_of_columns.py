"""Containers with columns, what can be asked of their columns, and what can be done with the containers."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections import ChainMap, OrderedDict, UserDict, defaultdict
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import torch
from tests.remote.values.kinds_of_rows import Columns, Grid, Table
from transformers import BatchEncoding, BatchFeature
from transformers.modeling_outputs import SequenceClassifierOutput

from twinkle_remote import (
    concat,
    register_splitter,
    select,
    take,
)

ROWS = 5


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
