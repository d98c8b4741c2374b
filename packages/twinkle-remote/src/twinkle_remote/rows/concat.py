"""Joining: the rows of several values as one, the inverse of cutting one value with `take`."""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING, Any, TypeVar, cast

from twinkle_remote.errors import CollectError, DispatchError
from twinkle_remote.protocol.messages import Itself
from twinkle_remote.rows.cut import common_length, lengths
from twinkle_remote.rows.records import is_mapping, part_path, parts_of, rebuild, with_items
from twinkle_remote.rows.reduce import equal, shape_of
from twinkle_remote.rows.row_types import LISTS, joins_other_columns, row_type_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

T = TypeVar("T")
_MISSING = object()
_WAYS_OUT = "return a list, array or tensor, or collect with 'none', 'first', 'mean' or 'sum'"


def concat_results(values: Sequence[T], path: str) -> T:
    """The rows of several workers' results in order; None, or the component itself, if all results are that.

    Args:
        values: At least one; a single value is returned unchanged.
        path: What the values are, for messages.

    Raises:
        CollectError: They have no rows, even if they are equal, or cannot be joined.
    """
    first = values[0]
    if len(values) == 1 or ((first is None or first is Itself.ITSELF) and all(value is first for value in values)):
        return first
    if all(_count(value, path) is None for value in values):
        raise _no_rows(values, path)
    return concat(values, path, results=True)


def concat(values: Sequence[T], path: str = "result", *, results: bool = False) -> T:
    """The rows of all values in order.

    Args:
        values: At least one, all of one shape. Parts without rows next to those that have some must be equal in all.
            Where mappings have other columns, rows have None in those that they lack; the order is that of the first.
        path: What the values are, for messages.
        results: They are results of workers: a number next to rows is refused even if it is the same in all, because
            whether it is a sum, a mean or a constant is not known.

    Raises:
        CollectError: They cannot be joined; the message says where and why.
    """
    first = values[0]
    if len(values) == 1:
        return first
    kind = row_type_of(type(first))
    if kind is not None and kind.length(first) is not None:
        strangers = sorted({type(value).__name__ for value in values if row_type_of(type(value)) is not kind})
        if strangers:
            raise CollectError(
                f"{path}: flatten joins values of one type, got {type(first).__name__} and {', '.join(strangers)}"
            )
        keeps = joins_other_columns(type(first))  # a part without rows shows its columns
        full = [value for value in values if keeps or kind.length(value)] or values[:1]
        try:
            return full[0] if len(full) == 1 else cast("T", kind.concat(full))
        except Exception as error:  # each library raises its own errors
            shapes = [shape_of(value) for value in full]
            raise CollectError(f"{path}: the parts do not join, their shapes are {shapes}: {error}") from error
    parts = parts_of(first)
    return _same(values, path, results) if parts is None else _by_part(values, parts, path, results)


def _by_part(values: Sequence[T], parts: Mapping[Any, object], path: str, results: bool) -> T:
    first = values[0]
    tables: list[Mapping[Any, Any]] = []
    for value in values:
        table = parts_of(value) if type(value) is type(first) else None
        if table is None or (table.keys() != parts.keys() and not is_mapping(value)):
            raise CollectError(
                f"{path}: flatten joins by column, but one has {_described(first, parts)}, "
                f"another {_described(value, table)}"
            )
        tables.append(table)
    names = dict.fromkeys(key for table in tables for key in table)
    uneven = any(len(table) < len(names) for table in tables)
    rows = [_count(value, path) if parts_of(value) else 0 for value in values] if uneven else []
    joined: dict[Any, object] = {}
    for name in names:
        place = part_path(path, first, name)
        found = [table[name] for table in tables if name in table]
        if len(found) < len(tables):
            found = _with_missing([table.get(name, _MISSING) for table in tables], rows, place)
        joined[name] = concat(found, place, results=results)
    try:
        return with_items(first, joined) if is_mapping(first) else rebuild(first, list(joined.values()))
    except DispatchError as error:
        raise CollectError(f"{path}: {error}") from error


def _count(value: object, path: str) -> int | None:
    """Rows of a value that is joined; None if it has none."""
    try:
        return common_length(list(lengths(value, path)))
    except DispatchError as error:
        raise CollectError(str(error)) from error


def _with_missing(parts: Sequence[object], rows: Sequence[int | None], path: str) -> list[object]:
    """A column of some mappings, with None for each row of the others, as datasets has it; those without rows add none.

    Raises:
        CollectError: The column is no list, so that None cannot stand in it, or the rows of a mapping without
            it cannot be counted.
    """
    there = next(part for part in parts if part is not _MISSING)
    found: list[object] = []
    for part, count in zip(parts, rows, strict=True):
        if part is not _MISSING:
            found.append(part)
        elif count != 0:
            if count is None or row_type_of(type(there)) is not LISTS:
                raise CollectError(
                    f"{path}: flatten joins by column, and one value of {count or 'no'} rows has no such column: None "
                    f"stands for what is missing in a list, and this is a {type(there).__name__}; give all values the "
                    "column, or make it a list"
                )
            found.append([None] * count)
    return found


def _described(value: object, parts: Mapping[Any, object] | None) -> str:
    return type(value).__name__ if parts is None else f"{type(value).__name__} of {', '.join(map(str, parts)) or '-'}"


def _same(values: Sequence[T], path: str, results: bool) -> T:
    first = values[0]
    number = isinstance(first, numbers.Number) or (hasattr(first, "dtype") and not isinstance(first, str | bytes))
    if not (results and number) and all(value is first or equal(value, first) for value in values[1:]):
        return first
    raise _no_rows(values, path)


def _no_rows(values: Sequence[object], path: str) -> CollectError:
    shown = ", ".join(repr(value)[:40] for value in values[:4])
    return CollectError(
        f"{path}: flatten joins rows, and {type(values[0]).__name__} has none (got {shown}); {_WAYS_OUT}"
    )
