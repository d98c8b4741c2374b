"""Row types: what a type says of its values, so that they are cut and joined by rows; and the type's own.

Three functions are enough: `length`, `take` and `concat`. A type with columns has `columns`, `select` and `join` as
well, and one whose rows are more or less work has `costs`. No function changes what it is given.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

from twinkle_remote.protocol.messages import is_component_type
from twinkle_remote.rows.unknown import is_tensor_collection, refuse_attributes

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from twinkle_remote.tables.nodes import Rows

T = TypeVar("T", bound=type)
_OWN = "__rows__"  # the attribute of a registered class: it travels with a class that workers do not import
_LIBRARIES = {
    "datasets.Dataset": "datasets_rows",
    "numpy.ndarray": "array_rows",
    "pandas.DataFrame": "pandas_rows",
    "pandas.Series": "pandas_rows",
    "polars.DataFrame": "polars_rows",
    "polars.Series": "polars_rows",
    "pyarrow.Table": "arrow_rows",
    "torch.Tensor": "tensor_rows",
}


@dataclass(frozen=True, slots=True)
class RowType:
    """The functions of one type.

    Attributes:
        length: Number of rows of a value; None if this value has none, such as a 0-d array.
        take: Rows of a value by their numbers, which are in range: a range of step 1, as a view if the type allows it,
            or a tuple in any order.
        concat: The rows of at least one value, one after the other.
        columns: Names of the columns of a value; None if this value has none. None for types without columns, as the
            functions below.
        select: The same rows with the columns of some names.
        join: The columns of values that have equally many rows; a later one wins a name.
        costs: The cost of each row, at or above 0; None for 1 each.
    """

    length: Callable[[Any], int | None]
    take: Callable[[Any, Rows], Any]
    concat: Callable[[Sequence[Any]], Any]
    columns: Callable[[Any], Sequence[Hashable] | None] | None = None
    select: Callable[[Any, Sequence[Hashable]], Any] | None = None
    join: Callable[[Sequence[Any]], Any] | None = None
    costs: Callable[[Any], Sequence[float] | None] | None = None


def as_slice(rows: Rows) -> slice | None:
    """The slice of rows that follow each other; None for rows in another order."""
    return slice(rows.start, rows.stop) if type(rows) is range and rows.step == 1 else None


def sequence_like(value: Any, rows: Iterable[object]) -> Any:
    """A list or tuple of these rows, of the type of another one, which is made without its constructor."""
    kind = type(value)
    if isinstance(value, tuple):
        try:
            return tuple.__new__(kind, rows)
        except TypeError:  # a type in C that makes its values itself, such as those of torch.max
            return kind(rows)
    made = list.__new__(kind)
    list.extend(made, rows)
    return made


def _length(value: Any) -> int:
    if not isinstance(value, list):
        return len(value)
    if type(value) is not list:
        refuse_attributes(value)
    return list.__len__(value)


def _take(value: Any, rows: Rows) -> Any:
    part = as_slice(rows)
    if not isinstance(value, list):
        return list(value[part]) if part is not None else [value[row] for row in rows]
    of = list.__getitem__
    items = [of(value, row) for row in rows] if part is None else of(value, part)
    return items if type(value) is list else sequence_like(value, items)


def _concat(values: Sequence[Any]) -> Any:
    kinds = {type(value): value for value in values if isinstance(value, list)}
    if len(kinds) > 1:
        raise ValueError(f"they are of the types {', '.join(kind.__name__ for kind in kinds)}")
    rows = [row for value in values for row in (list.__iter__(value) if isinstance(value, list) else value)]
    return sequence_like(next(iter(kinds.values())), rows) if kinds else rows


LISTS = RowType(_length, _take, _concat)
"""Rows of lists are their elements, whatever a subclass makes of them; a subclass keeps its type.

Some rows of a range, or of a column of a dataset, are a list.
"""
_registered: dict[type, RowType] = {list: LISTS, range: LISTS}
_found: dict[type, RowType | None] = {}
_elsewhere: set[type] = set()  # registered by another module than their own


def register_rows(
    cls: T,
    *,
    length: Callable[[Any], int | None] | None = None,
    take: Callable[[Any, Rows], Any] | None = None,
    concat: Callable[[Sequence[Any]], Any] | None = None,
    columns: Callable[[Any], Sequence[Hashable] | None] | None = None,
    select: Callable[[Any, Sequence[Hashable]], Any] | None = None,
    join: Callable[[Sequence[Any]], Any] | None = None,
    costs: Callable[[Any], Sequence[float] | None] | None = None,
) -> T:
    """Say how values of a class, and of its subclasses, are divided and joined by rows; see `RowType`.

    Without functions these are the class's own methods of the same names, and `len` for `length`; so it can decorate
    the class. Call it in the module that defines the class, or in one that workers import; a class of the program's
    own `__main__` takes it along.

    Args:
        cls: The class; a later call replaces an earlier one.
        length: Number of rows of a value; by default `len`.
        take: Rows of a value by their numbers, a range or a tuple.
        concat: The rows of several values, one after the other.
        columns: The names of a value's columns.
        select: The same rows with some columns.
        join: The columns of several values; a later one wins a name.
        costs: The cost of each row.

    Raises:
        TypeError: There is no `take` or `concat`, or only one of `columns` and `select`.
    """
    names = [field.name for field in fields(RowType)]
    given = dict(zip(names, (length, take, concat, columns, select, join, costs), strict=True))
    if all(function is None for function in given.values()):
        given = {name: getattr(cls, name, None) for name in names}
    own = RowType(**{**given, "length": given["length"] or len})  # type: ignore[arg-type]  # checked below
    missing = [name for name in ("take", "concat") if given[name] is None]
    if (own.columns is None) != (own.select is None):
        missing.append("select" if own.select is None else "columns")
    if missing:
        raise TypeError(f"{cls.__name__} has no {' and no '.join(missing)}: give it as a method, or to register_rows")
    if sys._getframe(1).f_globals.get("__name__") != cls.__module__:
        _elsewhere.add(cls)
    try:
        setattr(cls, _OWN, own)
    except TypeError:  # a type in C
        _registered[cls] = own
    _found.clear()
    return cls


def row_type_of(kind: type) -> RowType | None:
    """The row type of a type or of its nearest base; None if its values have no rows of their own."""
    try:
        found = _found[kind]
    except KeyError:
        found = _found.setdefault(kind, _find(kind))
    return getattr(kind, _OWN, None) if found is None else found  # a class that came may have brought it later


def come_with_their_class() -> bool:
    """Whether a process that can open a value knows its row type: each was registered by the module of its class."""
    return not _elsewhere


def joins_other_columns(kind: type) -> bool:
    """Whether values of a type may have other columns where they are joined: of registered types, not of frames."""
    found = row_type_of(kind)
    return found is not None and found.columns is not None and (hasattr(kind, _OWN) or kind in _registered)


def _find(kind: type) -> RowType | None:
    if is_component_type(kind):
        return None
    for base in kind.__mro__:
        found: RowType | None = vars(base).get(_OWN) or _registered.get(base)
        if found is not None:
            return found
        name = f"{base.__module__.partition('.')[0]}.{base.__name__}"
        if name == "datasets.Column":
            return LISTS
        if name in _LIBRARIES:
            return _of_library(_LIBRARIES[name])
    return _of_library("tensor_dict_rows") if is_tensor_collection(kind) else None


def _of_library(name: str) -> RowType:
    made: RowType = getattr(importlib.import_module("twinkle_remote.rows.libraries"), name)()
    return made
