"""Values of many kinds, each made of row numbers, and whether two are the same: what the law of calls draws from."""

from __future__ import annotations

import array
import dataclasses
import functools
import importlib
import io
import itertools
import types
from collections import OrderedDict, UserDict, defaultdict, deque
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, NamedTuple

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import torch

from twinkle_data import Batch as LoaderBatch

BatchEncoding: Any = importlib.import_module("transformers").BatchEncoding


@dataclasses.dataclass
class Columns:
    first: Any
    second: Any
    note: str = "note"


@dataclasses.dataclass(frozen=True)
class Cached:
    rows: Any

    @functools.cached_property
    def total(self) -> Any:
        return len(self.rows)


class Pair(NamedTuple):
    left: Any
    right: Any


class Prompts(list[Any]):
    pass


class Ids(tuple[Any, ...]):
    pass


class Table(dict[str, Any]):
    pass


class Units(np.ndarray[Any, Any]):
    pass


class Marked(torch.Tensor):
    pass


class Box:
    def __init__(self, held: Any) -> None:
        self.held = held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Box)

    __hash__ = None  # type: ignore[assignment]  # as of what can change


class Slots:
    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held


class OldSequence:
    """Rows by `__getitem__` alone."""

    def __init__(self, held: Any) -> None:
        self.get = held.__getitem__

    def __getitem__(self, index: int) -> Any:
        return self.get(index)


class Exported:
    """An array to other libraries."""

    def __array__(self) -> Any:
        return np.arange(3)


def _with(value: Any, **attributes: Any) -> Any:
    for name, own in attributes.items():
        setattr(value, name, own)
    return value


def _jagged(numbers: Sequence[int], dim: int) -> Any:
    lengths = [number % 3 + 1 for number in numbers]
    held = torch.tensor([number for number, count in zip(numbers, lengths, strict=True) for _ in range(count)])
    held = held.repeat(3, 1) if dim == 2 else held.view(-1, 1).repeat(1, 3)
    offsets = torch.tensor([0, *itertools.accumulate(lengths)])
    return torch.nested.nested_tensor_from_jagged(held.to(torch.int64), offsets, jagged_dim=dim)


def _dataset(numbers: Sequence[int]) -> Any:
    features = datasets.Features({"x": datasets.Value("int32"), "s": datasets.Value("string")})
    return datasets.Dataset.from_dict({"x": list(numbers), "s": list(map(str, numbers))}, features=features)


def _cached(value: Any) -> Any:
    assert value.total is not None
    return value


Numbers = Sequence[int]
KNOWN: dict[str, Callable[[Numbers], Any]] = {
    "ints": list,
    "dicts": lambda n: [{"row": i, "ids": [i] * (i % 3)} for i in n],
    "tensors": lambda n: [torch.tensor([i] * (i % 3 + 1)) for i in n],
    "array": lambda n: np.array(n, "int32"),
    "floats": lambda n: np.array([[i, i / 2] for i in n], "float16").reshape(len(n), 2),
    "other order of bytes": lambda n: np.array(n, ">i4"),
    "texts": lambda n: np.array([f"row {i}" for i in n], "<U8"),
    "objects": lambda n: np.array([{"row": i} for i in n] + [None], dtype=object)[:-1],
    "times": lambda n: np.array(n, "M8[s]"),
    "record": lambda n: np.array([(i, i / 2) for i in n], [("a", "i4"), ("b", "f8")]),
    "units": lambda n: np.array(n, "int64").view(Units),
    "tensor": lambda n: torch.tensor(n, dtype=torch.int64),
    "halves": lambda n: torch.tensor([[i, i + 1] for i in n], dtype=torch.bfloat16).reshape(len(n), 2),
    "marked": lambda n: torch.tensor(n, dtype=torch.int64).as_subclass(Marked),
    "of a graph": lambda n: torch.tensor(n, dtype=torch.float32).requires_grad_() * 2,
    "jagged": lambda n: _jagged(n, 1),
    "jagged, dim 2": lambda n: _jagged(n, 2),
    "series": lambda n: pd.Series([f"row {i}" for i in n], index=[i + 7 for i in n], name="x", dtype="str"),
    "own index": lambda n: pd.DataFrame({"x": np.array(n, "int8")}, index=pd.Index([f"k{i}" for i in n], dtype="str")),
    "polars": lambda n: pl.DataFrame({"x": list(n)}, schema={"x": pl.UInt16}),
    "polars series": lambda n: pl.Series("x", list(n), dtype=pl.Int16),
    "arrow": lambda n: pa.table({"x": pa.array(n, pa.int16())}),
    "dataset": lambda n: _dataset(n),
    "formatted": lambda n: _dataset(n).with_format("numpy", columns=["x"]),
    "encoding": lambda n: BatchEncoding({"ids": [[i] for i in n], "mask": torch.ones(len(n), 2)}),
    "pair": lambda n: Pair(list(n), list(n)),
    "dict": lambda n: {"x": list(n), "y": np.array(n, "int64")},
    "ordered": lambda n: OrderedDict(x=list(n)),
    "default": lambda n: defaultdict(list, x=list(n)),
    "user dict": lambda n: UserDict(x=list(n)),
    "table": lambda n: Table(x=list(n)),
    "columns": lambda n: Columns(list(n), np.array(n, "int64")),
    "cached": lambda n: _cached(Cached(list(n))),
    "structure": lambda n: torch.tensor([[i, i + 1] for i in n]).reshape(len(n), 2).max(dim=1),
    "prompts": lambda n: Prompts(n),
    "loader": lambda n: LoaderBatch(list(n), indices=[i + 5 for i in n], valid=[True for _ in n]),
}
FRESH: dict[str, Callable[[Numbers], Any]] = {
    "frame": lambda n: pd.DataFrame({"x": np.array(n, "int8"), "k": pd.Categorical(["b"] * len(n), ["a", "b"])}),
    "named frame": lambda n: _with(pd.DataFrame({"x": np.array(n, "int8")}), attrs={"unit": "kg"}),
    "scores": lambda n: pd.Series(np.array(n, "float32"), name="score"),
}
UNKNOWN: dict[str, Callable[[Numbers], Any]] = {
    "masked": lambda n: np.ma.array(np.array(n, "int64"), mask=[i % 2 == 0 for i in n]),
    "index": lambda n: pd.Index([i * 2 for i in n], name="i", dtype="int64"),
    "nullable": lambda n: pd.array([None if i % 3 == 0 else i for i in n], dtype="Int64"),
    "chunks": lambda n: pa.chunked_array([[i] for i in n], pa.int8()),
    "set": set,
    "proxy": lambda n: types.MappingProxyType({"x": list(n)}),
    "deque": deque,
    "keys": lambda n: dict.fromkeys(n).keys(),
    "values": lambda n: {i: i for i in n}.values(),
    "items": lambda n: dict.fromkeys(n).items(),
    "machine": lambda n: array.array("q", n),
    "old": lambda n: OldSequence(list(n)),
    "exported": lambda n: Exported(),
    "rows of a list": lambda n: _with(Prompts(n), lengths=[1] * len(n)),
    "total of a list": lambda n: _with(Prompts(n), _total=len(n) + 1),
    "total of a dict": lambda n: _with(Table(x=list(n)), _total=len(n) + 1),
    "total of columns": lambda n: _with(Columns(list(n), list(n)), total=len(n)),
    "lines": lambda n: io.StringIO("\n".join(map(str, n))),
    "grouped": lambda n: pd.DataFrame({"x": list(n)}).groupby("x"),
}
HIDDEN: dict[str, Callable[[Numbers], Any]] = {
    "box": lambda n: Box(list(n)),
    "boxed array": lambda n: Box({"deep": np.array(n)}),
    "box in box": lambda n: Box(Box(torch.tensor(n))),
    "slots": lambda n: Slots(list(n)),
    "namespace": lambda n: types.SimpleNamespace(rows=list(n)),
}
"""Objects of unknown classes with rows in their fields: they go whole, and are never joined."""
ONCE: dict[str, Callable[[Numbers], Any]] = {
    "chain": lambda n: itertools.chain(n),
    "generator": lambda n: (i for i in n),
    "zip": lambda n: zip(n, n, strict=True),
    "reversed": lambda n: reversed(list(n)),
    "set's": lambda n: iter(set(n)),
    "dict's": lambda n: iter(dict.fromkeys(n)),
    "islice": lambda n: itertools.islice(n, 5),
}
WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "bare": lambda value: value,
    "in a dict": lambda value: {"part": value, "note": "n", "none": None},
    "deep": lambda value: {"in": {"part": value}},
    "in columns": lambda value: Columns(value, value),
    "in a pair": lambda value: Pair(value, "note"),
}


WITH_ATTRIBUTES = (Cached, pd.DataFrame)


def same(left: Any, right: Any) -> bool:
    """Equal in type, attributes, layout, types of elements and every element."""
    if type(left) is not type(right):
        return False
    if isinstance(right, LoaderBatch) and left.indices != right.indices:
        return False
    if isinstance(right, WITH_ATTRIBUTES):
        kept = {name: getattr(right, name, None) for name in ("attrs", "total")}
        if any(getattr(left, name, None) != own for name, own in kept.items()):
            return False
    if isinstance(left, pd.DataFrame | pd.Series):
        check = "frame" if isinstance(left, pd.DataFrame) else "series"
        getattr(pd.testing, f"assert_{check}_equal")(left, right)
        return True
    if isinstance(left, pl.DataFrame | pl.Series | pa.Table):
        return bool(left.equals(right))
    if isinstance(left, datasets.Dataset):
        return (left.features, left.column_names) == (right.features, right.column_names) and (
            left.format["type"] == right.format["type"]
            and left.with_format(None).to_list() == right.with_format(None).to_list()
        )
    if isinstance(left, torch.Tensor) and left.is_nested:
        return all(torch.equal(a, b) for a, b in zip(_of_jagged(left), _of_jagged(right), strict=True))
    if isinstance(left, torch.Tensor):
        return (left.dtype, left.layout, _listed(left)) == (right.dtype, right.layout, _listed(right))
    if isinstance(left, np.ndarray):
        return bool(left.dtype == right.dtype and left.tolist() == right.tolist())
    if isinstance(left, MutableMapping):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if dataclasses.is_dataclass(left):
        return all(same(getattr(left, f.name), getattr(right, f.name)) for f in dataclasses.fields(left))
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def _of_jagged(value: Any) -> Sequence[Any]:
    return value.values(), value.offsets()


def _listed(value: torch.Tensor) -> Any:
    return value.detach().to_dense().tolist()
