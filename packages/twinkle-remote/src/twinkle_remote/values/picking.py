"""Rows by their numbers, and columns by their names: `take`, `concat` and `select` of plain values."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterable, Mapping, Set
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, runtime_checkable

from twinkle_remote.errors import CollectError, ColumnError, DispatchError, NoTableError, RowIndexError
from twinkle_remote.values.columns import columns, is_mapping, is_named, rebuild, with_items, with_only
from twinkle_remote.values.join import join
from twinkle_remote.values.left_out import LeftOut
from twinkle_remote.values.rows import rows_of, splitter_of, take
from twinkle_remote.values.sequences import by_runs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.protocol.tables import Rows

T = TypeVar("T")


@runtime_checkable
class TakingSplitter(Protocol[T]):
    """A splitter that takes rows by their numbers; those of others are cut run by run."""

    def take(self, value: T, rows: Rows) -> T:
        """Rows of these numbers, from 0 to below the length, in this order."""


@runtime_checkable
class ColumnSplitter(Protocol[T]):
    """A splitter of a type that has columns."""

    def columns(self, value: T) -> Sequence[Hashable] | None:
        """The names of the columns; None if this value has none."""

    def select(self, value: T, names: Sequence[Hashable]) -> T:
        """The same rows with these columns only."""


@runtime_checkable
class JoiningSplitter(Protocol[T]):
    """A splitter of a type whose values can have the columns of others."""

    def join(self, values: Sequence[T]) -> T:
        """The columns of all values, which have equally many rows; a later one wins a name."""


def row_numbers(rows: object) -> slice | tuple[int, ...]:
    """Check what names rows: a slice, or integers of Python, numpy or torch.

    Raises:
        TypeError: It is a single number, flags, a set or a mapping, or holds something else than integers.
        ValueError: The step of the slice is 0.
    """
    if isinstance(rows, slice):
        if rows.step is not None and _number(rows.step) == 0:
            raise ValueError(f"{rows} has the step 0: use another one")
        return slice(*(None if end is None else _number(end) for end in (rows.start, rows.stop, rows.step)))
    if isinstance(rows, str | bytes | Mapping | Set) or not isinstance(rows, Iterable):
        raise _no_numbers(rows)
    listed = getattr(rows, "tolist", None)  # of arrays and tensors, a hundred times faster than one by one
    found = listed() if callable(listed) else list(rows)
    if not isinstance(found, list):  # an array without a dim
        raise _no_numbers(rows)
    return tuple(number if type(number) is int else _number(number) for number in found)


def _number(value: object) -> int:
    try:
        if isinstance(value, bool) or "bool" in str(getattr(value, "dtype", "")):
            raise TypeError
        return operator.index(cast("Any", value))
    except TypeError:
        raise _no_numbers(value) from None


def _no_numbers(value: object) -> TypeError:
    return TypeError(
        f"rows are a slice, or integers in any order, got {type(value).__name__} {value!r:.60}; use [n] for one row, "
        "and the numbers of the rows in place of flags"
    )


def rows_within(rows: slice | tuple[int, ...], total: int, what: str = "the table") -> Rows:
    """The rows that numbers name in a table of so many rows; numbers that follow each other become a range.

    Raises:
        RowIndexError: There is no row of a number.
    """
    if isinstance(rows, slice):
        named = range(*rows.indices(total))
        return named if len(named) > 1 else range(named[0], named[0] + 1) if named else range(0)
    if not rows:
        return range(0)
    if min(rows) < -total or max(rows) >= total:
        wrong = next(row for row in rows if not -total <= row < total)
        raise RowIndexError(f"row {wrong} is out of range: {what} has {total} rows, from 0, or from -1 backwards")
    if min(rows) < 0:
        rows = tuple([row + total if row < 0 else row for row in rows])
    first = rows[0]
    follow = range(first, first + len(rows))
    return follow if rows[-1] == follow[-1] and rows == tuple(follow) else rows


def pick(value: T, rows: Rows) -> T:
    """Rows of a value by their numbers, which are in range; columns are cut, and parts without rows stay whole."""
    if isinstance(rows, range) and rows.step == 1:
        return take(value, rows.start, max(rows.start, rows.stop))
    splitter = splitter_of(type(value))
    if splitter is not None:
        if splitter.length(value) is None:
            return value
        taken = splitter.take(value, rows) if isinstance(splitter, TakingSplitter) else by_runs(splitter, value, rows)
        return cast("T", taken)
    parts = columns(value)
    if parts is None:
        return cast("T", value[:]) if isinstance(value, LeftOut) else value
    fresh = [pick(part, rows) for part in parts.values()]
    return value if all(new is old for new, old in zip(fresh, parts.values(), strict=True)) else rebuild(value, fresh)


def count_rows(value: object, what: str) -> int:
    """The number of rows of a value.

    Args:
        value: Any value.
        what: What needs rows, for messages.

    Raises:
        NoTableError: It has none.
        DispatchError: Its columns differ in length.
    """
    total = rows_of(value, type(value).__name__, fields=True)
    if total is None:
        raise NoTableError(f"{what} needs rows, and a {type(value).__name__} has none: {value!r:.60}")
    return total


def taken(value: T, rows: slice | tuple[int, ...]) -> T:
    """Rows of a value, as `take` of twinkle gives them."""
    return with_lists(pick(value, rows_within(rows, count_rows(value, "take"), f"the {type(value).__name__}")))


def with_lists(value: T) -> T:
    """A value whose ranges, also in columns, are lists: of a part of some ranges nobody sees what they join to."""
    if isinstance(value, range):
        return cast("T", list(value))
    parts = None if splitter_of(type(value)) is not None else columns(value)
    if parts is None:
        return value
    fresh = [with_lists(part) for part in parts.values()]
    return value if all(new is old for new, old in zip(fresh, parts.values(), strict=True)) else rebuild(value, fresh)


def concatenated(values: Sequence[T]) -> T:
    """The rows of all values, as `concat` of twinkle gives them.

    Args:
        values: At least one.
    """
    for value in values:
        count_rows(value, "concat")
    try:
        return with_lists(join(values, "concat"))
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
    splitter = splitter_of(type(first))
    kinds = {type(value) for value in values}
    mappings = splitter is None and all(map(is_mapping, values))
    if (len(kinds) > 1 and not mappings) or (splitter is not None and not isinstance(splitter, JoiningSplitter)):
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise NoTableError(f"join has no rule for {names}: use values of one type, such as dicts of columns")
    if isinstance(splitter, JoiningSplitter):
        try:
            return with_lists(cast("T", splitter.join(values)))
        except (TypeError, ValueError) as error:
            raise DispatchError(f"join: {error}") from error
    every = [columns(value) or {} for value in values]
    if mappings:
        return with_lists(with_items(first, {name: part for parts in every for name, part in parts.items()}))
    last = {name: part for parts in every for name, part in parts.items() if part is not None}
    return with_lists(rebuild(first, [last.get(name) for name in every[0]]))


def column_names(value: object) -> Sequence[Hashable] | None:
    """The names of the columns of a value; None if it has none."""
    splitter = splitter_of(type(value))
    if splitter is not None:
        return splitter.columns(value) if isinstance(splitter, ColumnSplitter) else None
    parts = None if is_named(type(value)) else columns(value)
    return None if parts is None else list(parts)


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
    splitter = splitter_of(type(value))
    if isinstance(splitter, ColumnSplitter):
        return cast("T", splitter.select(value, names))
    if is_mapping(value):
        return with_lists(with_only(value, names))
    parts = columns(value)
    assert parts is not None
    return with_lists(rebuild(value, [part if name in names else None for name, part in parts.items()]))
