"""Rows of pandas frames, series, indexes and arrays; the index goes along, and what pandas keeps with the values."""

from __future__ import annotations

import importlib
import itertools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from twinkle_remote.protocol.tables import Rows

_pandas: Any = importlib.import_module("pandas")


class PandasSplitter:
    """Splitter for `pandas.DataFrame`, `Series`, `Index` and the arrays that they hold."""

    def length(self, value: Any) -> int:
        """Number of rows."""
        return len(value)

    def slice(self, value: Any, start: int, stop: int) -> Any:
        """Rows [start, stop), with their index."""
        return value.iloc[start:stop] if isinstance(value, _pandas.DataFrame | _pandas.Series) else value[start:stop]

    def take(self, value: Any, rows: Rows) -> Any:
        """Rows of these numbers, with their index."""
        if isinstance(value, _pandas.DataFrame | _pandas.Series):
            return value.iloc[list(rows)]
        return value.take(list(rows))

    def columns(self, value: Any) -> Sequence[Hashable] | None:
        """The columns of a frame."""
        return list(value.columns) if isinstance(value, _pandas.DataFrame) else None

    def sizes(self, value: Any) -> Mapping[Hashable, int]:
        """The bytes of each column of a frame; columns of one name count together, and Python objects do not."""
        found: dict[Hashable, int] = {}
        for name, column in value.items() if isinstance(value, _pandas.DataFrame) else ():
            found[name] = found.get(name, 0) + (0 if column.dtype == object else int(column.nbytes))
        return found

    def select(self, value: Any, names: Sequence[Hashable]) -> Any:
        """The frame with these columns."""
        return value[list(names)]

    def join(self, values: Sequence[Any]) -> Any:
        """The columns of all frames, row next to row; the labels are those of the first one."""
        fresh = values[0].copy(deep=False)
        for value in values[1:]:
            if not value.columns.is_unique or not fresh.columns.is_unique:
                raise ValueError("a name stands for several columns: use names that differ")
            for name in value.columns:
                fresh[name] = value[name].array
        return fresh

    def concat(self, values: Sequence[Any]) -> Any:
        """One new frame, series, index or array. Default indexes, each from 0, go on as one.

        Raises:
            ValueError: Columns, types, names, attributes or kinds of index differ.
        """
        first = values[0]
        _alike("types", map(type, values))
        if isinstance(first, _pandas.Index):
            return _indexes(values)
        if not isinstance(first, _pandas.DataFrame | _pandas.Series):
            _check_types(values, "value")
            return _pandas.concat([_pandas.Series(value) for value in values]).array
        if isinstance(first, _pandas.DataFrame):
            if any(not value.columns.equals(first.columns) for value in values):
                raise ValueError(f"their columns are {[list(value.columns) for value in values]}")
            _alike("names of the columns", (tuple(value.columns.names) for value in values))
            for place, name in enumerate(first.columns):
                _check_types([value.iloc[:, place] for value in values], name)
        else:
            _alike("names", (value.name for value in values))
            _check_types(values, "value")
        _check_types([value.index for value in values], "index")
        _alike("names of the index", (tuple(value.index.names) for value in values))
        _alike("attributes", (value.attrs for value in values))
        fresh = _are_repeated([value.index for value in values])
        joined = _pandas.concat(list(values), ignore_index=fresh)
        if fresh:
            start = first.index.start
            joined.index = _pandas.RangeIndex(start, start + len(joined), name=first.index.name)
        elif _frequency(first.index) is not None:
            joined.index = _indexes([value.index for value in values])
        return _with_metadata(joined, values)

    def equal(self, left: Any, right: Any) -> bool:
        """Same types, index, names and elements."""
        if isinstance(left, _pandas.DataFrame | _pandas.Series) and not left.index.equals(right.index):
            return False
        return bool(left.equals(right))

    def reduce(self, how: str, values: Sequence[Any], weights: Sequence[float] | None) -> Any:
        """The sum or mean, elementwise.

        Raises:
            ValueError: The indexes or columns differ: pandas would match rows by their labels.
        """
        first = values[0]
        if isinstance(first, _pandas.DataFrame | _pandas.Series):
            _alike("indexes", ([list(axis) for axis in value.axes] for value in values))
        total = 0
        for i, value in enumerate(values):
            total = total + (value if weights is None else value * weights[i])
        return total if how == "sum" else total / (len(values) if weights is None else sum(weights))


def _alike(what: str, found: Iterable[Any]) -> None:
    first, *others = list(found)
    if any(other is not first and other != first for other in others):
        raise ValueError(f"their {what} are {first!r:.60} and {next(o for o in others if o != first)!r:.60}")


def _check_types(values: Sequence[Any], name: object) -> None:
    """Check that no element becomes another: numbers meet numbers, everything else meets its own type."""
    first = values[0]
    if isinstance(first, _pandas.MultiIndex):
        for level in range(first.nlevels):
            _check_types([value.get_level_values(level) for value in values], name)
        return
    if all(value.dtype == first.dtype for value in values):
        return
    said = ", ".join(dict.fromkeys(str(value.dtype) for value in values))
    if not all(hasattr(value.dtype, "itemsize") and value.dtype.kind in "iufc" for value in values):
        raise ValueError(f"their types of {name!r} are {said}; return one type on all ranks")
    from twinkle_remote.values.adapters.numpy import check_types  # pandas has loaded numpy

    check_types([getattr(value.dtype, "numpy_dtype", value.dtype) for value in values], values)


def _are_repeated(indexes: Sequence[Any]) -> bool:
    """Whether default indexes of several ranks bear some numbers twice, which those of shares of one frame do not."""
    if not all(isinstance(index, _pandas.RangeIndex) and index.step == 1 for index in indexes):
        return False
    ordered = sorted(indexes, key=lambda index: (index.start, index.stop))
    return any(after.start < before.stop for before, after in itertools.pairwise(ordered))


def _frequency(index: Any) -> Any:
    return index.freq if isinstance(index, _pandas.DatetimeIndex | _pandas.TimedeltaIndex) else None


def _indexes(values: Sequence[Any]) -> Any:
    first = values[0]
    _check_types(values, "index")
    _alike("names", (tuple(value.names) for value in values))
    joined = first.append(list(values[1:]))
    if _frequency(first) is not None and all(value.freq == first.freq for value in values):
        try:
            return type(first)(joined, freq=first.freq)
        except ValueError:  # they do not follow each other
            return joined
    return joined


def _with_metadata(joined: Any, values: Sequence[Any]) -> Any:
    """The joined frame with what a subclass of pandas' types keeps."""
    if type(joined) is not type(values[0]):
        raise ValueError(f"of {type(values[0]).__name__} pandas makes a {type(joined).__name__}")
    for name in type(joined)._metadata:
        _alike(name, (getattr(value, name, None) for value in values))
        object.__setattr__(joined, name, getattr(values[0], name, None))
    return joined


SPLITTER = PandasSplitter()
