"""The columns of a table that are wanted: those that were selected, those that a function reads, those that it adds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, runtime_checkable

from twinkle_remote.errors import CollectError, ColumnError, DispatchError, NoTableError
from twinkle_remote.protocol.tables import Reads
from twinkle_remote.values.columns import columns, is_mapping, with_items, with_parts
from twinkle_remote.values.left_out import LeavingSplitter, LeftOut, column_of
from twinkle_remote.values.picking import column_names, count_rows, joined, pick, selected
from twinkle_remote.values.rows import PLAIN, holds_marks, may_have_rows, rows_of, size_in_bytes, splitter_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from twinkle_remote.protocol.tables import Columns, Rows

T = TypeVar("T")
_PLAIN = PLAIN - {LeftOut}


@runtime_checkable
class AddingSplitter(Protocol[T]):
    """A splitter that keeps columns which are to be joined to the same rows with less than `select` keeps of them."""

    def added(self, value: T, names: Sequence[Hashable]) -> T:
        """These columns, for `join` with values of the same rows after them."""


def in_columns(value: T, columns: Columns | None) -> T:
    """A table's part, or a table, in the columns that are wanted; None for all.

    Raises:
        ColumnError: One that was selected is not there.
    """
    if columns is None:
        return value
    if isinstance(columns, Reads):
        return only_read(in_columns(value, columns.within), columns, keeps_rows=True)
    return selected(value, columns)


def selected_where_there(value: T, names: Columns) -> T:
    """Columns of a part of a table; the whole part where it lacks one, which the other parts may have."""
    if isinstance(names, Reads):
        some = value if names.within is None else selected_where_there(value, names.within)
        return only_read(some, names, keeps_rows=True)
    known = column_names(value)
    return value if known is None or any(name not in known for name in names) else selected(value, names)


def picked(value: Any, rows: Rows | None, names: Columns | None) -> Any:
    """Rows of a part of a table, with the columns that are wanted; see `PickingStore.pick`."""
    some = value if names is None else selected_where_there(value, names)
    return some if rows is None else pick(some, rows)


def only_read(value: T, reads: Reads, *, keeps_rows: bool = False) -> T:
    """A value for a function that reads some of its columns: those that are there, and `LeftOut` for the others.

    A value without columns is returned unchanged, and one of a type that cannot have a mark: a column that is missing
    there would be left out of its operations in silence.

    Args:
        value: Any value.
        reads: The columns.
        keeps_rows: Where no column that is read has rows, the narrowest other one stays, so that rows can be counted.

    Raises:
        DispatchError: It is a mapping that cannot be made again with marks.
    """
    names = column_names(value) if holds_marks(type(value)) else None
    if names is None:
        return value
    parts, splitter = columns(value), splitter_of(type(value))
    known = {} if splitter is not None or parts is None else parts
    left = [name for name in names if name not in reads.names and known.get(name, names) is not None]
    if keeps_rows and left and splitter is None and parts is not None:
        if not any(may_have_rows(part) for name, part in parts.items() if name in reads.names):
            with_rows = [name for name in left if may_have_rows(parts[name])]
            narrowest = min(with_rows, key=lambda name: size_in_bytes(parts[name]), default=None)
            left = [name for name in left if name is not narrowest]
    elif keeps_rows and len(left) == len(names):
        left = left[1:]
    gone = [name for name in reads.gone if name not in names]
    marks = {name: LeftOut(name, reads.of) for name in (*left, *gone)}
    if not marks:
        return value
    if isinstance(splitter, LeavingSplitter):
        return cast("T", splitter.leave_out(value, marks))
    assert parts is not None
    try:
        if gone and is_mapping(value):
            return with_items(value, {**parts, **marks}, whole=True)
        return with_parts(value, [marks.get(name, part) for name, part in parts.items()])
    except DispatchError as error:
        raise DispatchError(f"reads= of {reads.of} puts marks in place of columns: {error}") from error


def marks_in(value: Any) -> Sequence[LeftOut]:
    """The marks of columns that a value holds at any depth of lists, tuples and columns."""
    kind = type(value)
    if kind is LeftOut:
        return [value]
    if isinstance(value, list | tuple) and columns(value) is None:
        kinds = set(map(type, value))
        if kinds <= _PLAIN:
            return ()
        return [mark for item in value for mark in marks_in(item)]
    if splitter_of(kind) is not None:
        return _marks_of(value)
    return [mark for part in (columns(value) or {}).values() for mark in marks_in(part)]


def _marks_of(value: Any) -> Sequence[LeftOut]:
    """The marks that stand in place of a value's columns."""
    splitter = splitter_of(type(value))
    if splitter is not None:
        return splitter.marks(value) if isinstance(splitter, LeavingSplitter) else ()
    return [part for part in (columns(value) or {}).values() if isinstance(part, LeftOut)]


def with_added(argument: Any, result: Any, names: Sequence[Hashable], method: str) -> Any:
    """The rows of an argument with the columns that a function has added.

    Args:
        argument: The rows that it was given.
        result: What it returned.
        names: The columns.
        method: Class.method, for messages.

    Raises:
        NoTableError: The result has no columns, or is of a type whose columns do not join those of the argument.
        ColumnError: It lacks one of the columns.
        CollectError: It has another number of rows.
        DispatchError: Its rows are others.
    """
    given, there = count_rows(argument, "adds="), column_names(result)
    if there is None:
        raise NoTableError(
            f"{method} returned a {type(result).__name__}, which has no columns: with adds= it returns its rows with "
            f"the columns {', '.join(map(repr, names))}"
        )
    marked = set(map(column_of, _marks_of(result)))
    missing = [name for name in names if name not in there or name in marked]
    if missing:
        raise ColumnError(
            f"{method} returned no column {', '.join(map(repr, missing))}, which adds= names, but "
            f"{', '.join(map(repr, there))}"
        )
    own = selected(result, names)
    made = rows_of(own, f"the result of {method}", fields=True)
    if made != given:
        raise CollectError(
            f"{method} returned {'no' if made is None else made} rows of {', '.join(map(repr, names))} for {given} "
            "rows: with adds= a function returns one row for each that it is given"
        )
    try:
        return joined([argument, own])
    except DispatchError as error:
        kind = NoTableError if isinstance(error, NoTableError) else DispatchError
        raise kind(f"{method}: adds= joins its columns to those of the argument: {error}") from error


def added(value: T, names: Sequence[Hashable]) -> T:
    """Columns of a value that are joined to the same rows."""
    splitter = splitter_of(type(value))
    if splitter is not None and isinstance(splitter, AddingSplitter):
        return cast("T", splitter.added(value, names))
    return selected(value, names)


def no_columns(method: str, word: str, name: str, value: object) -> NoTableError:
    """The error that an argument has no columns.

    Args:
        method: Class.method.
        word: The option.
        name: The argument's name.
        value: The argument.
    """
    return NoTableError(
        f"{method}: {word} names columns of the first divided argument, and {name} is a {type(value).__name__}, which "
        "has none: use a dict of columns, a dataclass, Rollouts, a frame or a dataset, or split= for another argument"
    )
