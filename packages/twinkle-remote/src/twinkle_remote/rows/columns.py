"""`take`, `concat`, `join` and `select` of plain values: rows by their numbers, and columns by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

from twinkle_remote.errors import CollectError, ColumnError, DispatchError, NoTableError
from twinkle_remote.rows.concat import concat
from twinkle_remote.rows.cut import rows_of, rows_within, take
from twinkle_remote.rows.records import is_mapping, parts_of, rebuild, with_items
from twinkle_remote.rows.row_types import row_type_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from twinkle_remote.tables.nodes import Columns, Rows

T = TypeVar("T")


def count_rows(value: object, what: str) -> int:
    """The number of rows of a value.

    Args:
        value: Any value.
        what: What needs rows, for messages.

    Raises:
        NoTableError: It has none.
        DispatchError: Its columns differ in length.
    """
    total = rows_of(value, type(value).__name__)
    if total is None:
        raise NoTableError(f"{what} needs rows, and a {type(value).__name__} has none: {value!r:.60}")
    return total


def taken(value: T, rows: slice | tuple[int, ...]) -> T:
    """Rows of a value, as `take` of twinkle gives them."""
    return take(value, rows_within(rows, count_rows(value, "take"), f"the {type(value).__name__}"))


def concatenated(values: Sequence[T]) -> T:
    """The rows of all values, as `concat` of twinkle gives them.

    Args:
        values: At least one.
    """
    for value in values:
        count_rows(value, "concat")
    try:
        return concat(values, "concat")
    except CollectError as error:
        raise DispatchError(str(error)) from error


def joined(values: Sequence[T]) -> T:
    """The columns of all values, row next to row; a later one wins a name. `join` of twinkle.

    Args:
        values: At least one.

    Raises:
        NoTableError: One has no columns, or they are of several types, or of one whose columns do not join.
        DispatchError: Their rows differ in number, or in what cannot be joined.
    """
    first, counts = values[0], [count_rows(value, "join") for value in values]
    if len(set(counts)) > 1:
        raise DispatchError(f"join puts row next to row, and the values have {counts} rows: use as many in each")
    without = next((value for value in values if column_names(value) is None), None)
    if without is not None:
        raise NoTableError(f"join needs columns, and a {type(without).__name__} has none: use a dict of columns")
    rows = row_type_of(type(first))
    kinds = {type(value) for value in values}
    mappings = rows is None and all(map(is_mapping, values))
    if (len(kinds) > 1 and not mappings) or (rows is not None and rows.join is None):
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise NoTableError(f"join has no rule for {names}: use values of one type, such as dicts of columns")
    if rows is not None and rows.join is not None:
        try:
            return cast("T", rows.join(values))
        except (TypeError, ValueError) as error:
            raise DispatchError(f"join: {error}") from error
    every = [parts_of(value) or {} for value in values]
    if mappings:
        return with_items(first, {name: part for parts in every for name, part in parts.items()})
    last = {name: part for parts in every for name, part in parts.items() if part is not None}
    return rebuild(first, [last.get(name) for name in every[0]])


def column_names(value: object) -> Sequence[Hashable] | None:
    """The names of the columns of a value; None if it has none."""
    rows = row_type_of(type(value))
    if rows is not None:
        return None if rows.columns is None else rows.columns(value)
    parts = None if isinstance(value, tuple) else parts_of(value)
    return None if parts is None else list(parts)


def names_of(value: object) -> tuple[Hashable, ...] | None:
    """The columns of a mapping or of a type with columns, which differ among values; None of everything else."""
    known = column_names(value) if is_mapping(value) or row_type_of(type(value)) is not None else None
    return None if known is None else tuple(known)


def selected(value: T, names: Sequence[Hashable]) -> T:
    """Columns of a value, as `select` of twinkle gives them.

    Raises:
        NoTableError: It has no columns.
        ColumnError: It has no column of a name.
    """
    known = column_names(value)
    if known is None:
        raise NoTableError(
            f"select needs columns, and a {type(value).__name__} has none: dicts of columns, dataclasses, Rollouts, "
            "frames and datasets have some"
        )
    for name in names:
        if name not in known:
            raise ColumnError(f"the {type(value).__name__} has no column {name!r}, but {', '.join(map(repr, known))}")
    rows = row_type_of(type(value))
    if rows is not None and rows.select is not None:
        return cast("T", rows.select(value, names))
    parts: Any = parts_of(value)
    if is_mapping(value):
        return with_items(value, {name: parts[name] for name in names}, whole=True)
    return rebuild(value, [part if name in names else None for name, part in parts.items()])


def selected_where_there(value: T, names: Columns) -> T:
    """Those of these columns that a part of a table has; of a type that is no record one column, if it has none.

    A record without any of them has no rows any more, which are counted elsewhere.
    """
    known = column_names(value)
    if known is None:
        return value
    there = [name for name in names if name in known]
    return selected(value, there or ([] if row_type_of(type(value)) is None else known[:1]))


def picked(value: Any, rows: Rows | None, names: Columns | None) -> Any:
    """Rows of a part of a table, with the columns that are wanted; see `Store.get`."""
    some = value if names is None else selected_where_there(value, names)
    return some if rows is None else take(some, rows)
