"""Rows of arrays, frames, tables and datasets. A library is imported only where a value of it is seen.

The labels of a frame are data: rows keep them, and joined rows may repeat them.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import TYPE_CHECKING, Any

from twinkle_remote.errors import DispatchError
from twinkle_remote.rows.row_types import RowType, as_slice
from twinkle_remote.rows.unknown import refuse_attributes

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from twinkle_remote.tables.nodes import Rows

_TEXTS = "US"


def read_only(array: Any) -> Any:
    """An array of one's own that cannot be written to any more."""
    array.flags.writeable = False
    return array


@cache
def array_rows() -> RowType:
    """Rows of `numpy.ndarray`: the first dim."""
    import numpy as np

    def length(value: Any) -> int | None:
        if type(value) not in (np.ndarray, np.memmap):
            refuse_attributes(value)
        return value.shape[0] if value.ndim else None

    def take(value: Any, rows: Rows) -> Any:
        return value[as_slice(rows) or np.asarray(rows, dtype=np.intp)]

    def concat(values: Sequence[Any]) -> Any:
        first = values[0]
        _same("types", ((type(one), kind if (kind := one.dtype.kind) in _TEXTS else one.dtype) for one in values))
        whole = np.concatenate([value.view(np.ndarray) for value in values])
        if first.dtype.kind not in _TEXTS:
            whole = whole.astype(first.dtype, copy=False)  # the other order of bytes
        return read_only(whole.view(type(first)))  # as those that were not joined

    return RowType(length, take, concat)


@cache
def tensor_rows() -> RowType:
    """Rows of `torch.Tensor`: the first dim; of jagged ones their components."""
    import torch

    def length(value: Any) -> int | None:
        if type(value) is not torch.Tensor and not value.is_nested:
            refuse_attributes(value)
        return int(value.size(0)) if value.dim() else None

    def take(value: Any, rows: Rows) -> Any:
        if value.is_nested:
            return _jagged_take(value, rows)
        part = as_slice(rows)
        index = torch.tensor(rows, dtype=torch.int64, device=value.device) if part is None else part
        return value[index]

    def concat(values: Sequence[Any]) -> Any:
        _same("types", ((type(value), value.dtype, value.layout) for value in values))
        return _jagged_concat(values) if values[0].is_nested else torch.cat(list(values))

    return RowType(length, take, concat)


def _jagged_take(value: Any, rows: Rows) -> Any:
    """Components of these numbers."""
    own = value.unbind() if len(rows) else ()
    return _of_components(value, [own[row] for row in rows])


def _jagged_concat(values: Sequence[Any]) -> Any:
    """One tensor of all components.

    Raises:
        ValueError: Their ragged dims differ.
    """
    _same("ragged dims", map(_ragged, values))
    return _of_components(values[0], [part for value in values if value.size(0) for part in value.unbind()])


def _ragged(value: Any) -> int:
    """The ragged dim of a tensor."""
    return next(dim for dim, size in enumerate(value.shape) if not isinstance(size, int))


def _of_components(like: Any, parts: Sequence[Any]) -> Any:
    """A tensor of components, with the ragged dim of another one."""
    torch: Any = importlib.import_module("torch")
    dim = _ragged(like)
    held = torch.cat(list(parts), dim - 1) if parts else like.values().narrow(dim - 1, 0, 0)
    offsets = torch.tensor([0, *(part.size(dim - 1) for part in parts)], device=held.device).cumsum(0)
    return torch.nested.nested_tensor_from_jagged(held, offsets, jagged_dim=dim)


@cache
def tensor_dict_rows() -> RowType:
    """Rows of TensorDict and tensorclasses: the first dim of their batch size."""
    torch: Any = importlib.import_module("torch")

    def length(value: Any) -> int:
        if not value.batch_size:
            raise DispatchError(
                f"a {type(value).__name__} without batch_size does not say whether its tensors have rows: set "
                "batch_size=[rows], or pass Replicate(value) to send it whole"
            )
        return int(value.batch_size[0])

    def join(values: Sequence[Any]) -> Any:
        fresh = values[0].clone(recurse=False)
        for value in values[1:]:
            fresh.update(value)
        return fresh

    def concat(values: Sequence[Any]) -> Any:
        for key in values[0].keys(include_nested=True, leaves_only=True):
            _same(f"types of {key!r}", (getattr(value.get(key), "dtype", None) for value in values))
        return torch.cat(list(values), 0)

    return RowType(
        length,
        lambda value, rows: value[as_slice(rows) or torch.tensor(rows, dtype=torch.int64)],
        concat,
        columns=lambda value: list(value.keys()),
        select=lambda value, names: value.select(*names),
        join=join,
    )


@cache
def pandas_rows() -> RowType:
    """Rows of `pandas.DataFrame` and `pandas.Series`."""
    pandas: Any = importlib.import_module("pandas")

    def join(values: Sequence[Any]) -> Any:
        fresh = values[0].copy(deep=False)
        for value in values[1:]:
            if not value.columns.is_unique or not fresh.columns.is_unique:
                raise ValueError("a name stands for several columns: use names that differ")
            for name in value.columns:
                fresh[name] = value[name].array
        return fresh

    def concat(values: Sequence[Any]) -> Any:
        if isinstance(values[0], pandas.DataFrame):
            _same("columns", (list(value.columns) for value in values))
            _same("types", (list(value.dtypes) for value in values))
        else:
            _same("names", (value.name for value in values))
            _same("types", (value.dtype for value in values))
        return pandas.concat(list(values))

    return RowType(
        len,
        lambda value, rows: value.iloc[as_slice(rows) or list(rows)],
        concat,
        columns=lambda value: list(value.columns) if isinstance(value, pandas.DataFrame) else None,
        select=lambda value, names: value[list(names)],
        join=join,
    )


def _same(what: str, found: Iterable[Any]) -> None:
    first, *others = list(found)
    if any(other != first for other in others):
        raise ValueError(f"their {what} are {first!r:.60} and {next(o for o in others if o != first)!r:.60}")


@cache
def polars_rows() -> RowType:
    """Rows of `polars.DataFrame` and `polars.Series`."""
    polars: Any = importlib.import_module("polars")

    def join(values: Sequence[Any]) -> Any:
        fresh = values[0]
        for value in values[1:]:
            fresh = fresh.with_columns(value.get_columns())
        return fresh

    return RowType(
        len,
        lambda value, rows: value[as_slice(rows) or list(rows)],
        lambda values: polars.concat(list(values)),
        columns=lambda value: value.columns if isinstance(value, polars.DataFrame) else None,
        select=lambda value, names: value.select(list(names)),
        join=join,
    )


@cache
def arrow_rows() -> RowType:
    """Rows of `pyarrow.Table`."""
    arrow: Any = importlib.import_module("pyarrow")

    def take(value: Any, rows: Rows) -> Any:
        part = as_slice(rows)
        if part is not None:
            return value.slice(part.start, len(rows))
        return value.take(arrow.array(rows, type=arrow.int64()))

    def join(values: Sequence[Any]) -> Any:
        fresh = values[0]
        for value in values[1:]:
            for field, column in zip(value.schema, value.columns, strict=True):
                place = fresh.schema.get_field_index(field.name)
                fresh = fresh.append_column(field, column) if place < 0 else fresh.set_column(place, field, column)
        return fresh

    return RowType(
        len,
        take,
        arrow.concat_tables,
        columns=lambda value: list(value.schema.names),
        select=lambda value, names: value.select(list(names)),
        join=join,
    )


@cache
def datasets_rows() -> RowType:
    """Rows of `datasets.Dataset`, whose features and format stay."""
    datasets: Any = importlib.import_module("datasets")

    def join(values: Sequence[Any]) -> Any:
        taken: set[Hashable] = set()
        kept = []
        for value in reversed(values):
            own = [name for name in value.column_names if name not in taken]
            taken.update(own)
            kept += [value.select_columns(own)] if own else []
        return datasets.concatenate_datasets(kept[::-1], axis=1)

    return RowType(
        len,
        lambda value, rows: value.select(rows if isinstance(rows, range) and rows else list(rows)),
        lambda values: datasets.concatenate_datasets(list(values)),
        columns=lambda value: list(value.column_names),
        select=lambda value, names: value.select_columns(list(names)),
        join=join,
    )
