"""Rows of one value: their number, their costs, and some of them.

Data parallelism divides rows: the elements of a list or range, the first dim of an array or tensor, the rows of a
frame, table or dataset. Records have the rows of their parts. A value of an unknown type that is iterable, or has a
length or items by index, is an error. All other values have no rows and go whole.
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Iterable, Mapping, Set
from numbers import Number
from typing import TYPE_CHECKING, Any, TypeVar, cast

from twinkle_remote.errors import DispatchError, RowIndexError
from twinkle_remote.rows.records import part_path, parts_of, rebuild
from twinkle_remote.rows.row_types import row_type_of
from twinkle_remote.rows.unknown import refuse, row_protocol, without_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from twinkle_remote.tables.nodes import Rows

T = TypeVar("T")
PLAIN = frozenset({int, float, str, bytes, bool, complex, type(None)})


def lengths(value: object, path: str) -> Iterator[tuple[str, int]]:
    """Every part of a value that has rows, as (path, number of rows).

    Args:
        value: Any value.
        path: What it is, for messages.

    Raises:
        DispatchError: A part of an unknown type looks as if it had rows.
    """
    rows = row_type_of(type(value))
    if rows is not None:
        length = rows.length(value)
        if length is not None:
            yield path, length
        return
    parts = parts_of(value)
    if parts is None:
        refuse_unknown(value, path)
        return
    for key, part in parts.items():
        yield from lengths(part, part_path(path, value, key))


def common_length(found: Sequence[tuple[str, int]]) -> int | None:
    """The common length of all parts; None if there are no parts.

    Raises:
        DispatchError: The lengths differ; the message names each part with its length.
    """
    if not found:
        return None
    if len({rows for _, rows in found}) > 1:
        listing = ", ".join(f"{path} has {rows}" for path, rows in found)
        raise DispatchError(
            f"what one call splits must have one number of rows, but {listing}; mark what must go whole with "
            "Replicate(value) or remote_function(replicate=(...)), or name what is split with split=(...)"
        )
    return found[0][1]


def rows_of(value: object, path: str = "value") -> int | None:
    """Number of rows of a value; None when it has none.

    Raises:
        DispatchError: Its columns differ in length, or a part has an unknown type.
    """
    return common_length(list(lengths(value, path)))


def may_have_rows(value: object) -> bool:
    """Whether a value has rows, or is of an unknown type that looks as if it had some; see `lengths`."""
    if type(value) in PLAIN:
        return False
    try:
        return next(lengths(value, ""), None) is not None
    except DispatchError:
        return True


def counted_rows(arguments: Sequence[object]) -> int | None:
    """Rows of a call that are no fillers, by `valid` of a list or tuple among its arguments; None where none has it."""
    for value in arguments:
        if isinstance(value, (list, tuple)) and type(value) not in (list, tuple):
            valid = getattr(value, "valid", None)
            if isinstance(valid, list) and len(valid) == len(value):
                return sum(map(bool, valid))
    return None


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
        named = range(total)[rows]
        return named if len(named) > 1 else range(named[0], named[0] + 1) if named else range(0)
    if not rows:
        return range(0)
    if min(rows) < -total or max(rows) >= total:
        wrong = next(row for row in rows if not -total <= row < total)
        raise RowIndexError(f"row {wrong} is out of range: {what} has {total} rows, from 0, or from -1 backwards")
    if min(rows) < 0:
        rows = tuple([row + total if row < 0 else row for row in rows])
    return compact(rows)


def compact(rows: tuple[int, ...]) -> Rows:
    """Row numbers; those that follow each other become a range."""
    if not rows:
        return range(0)
    follow = range(rows[0], rows[0] + len(rows))
    return follow if rows[-1] == follow[-1] and rows == tuple(follow) else rows


def take(value: T, rows: Rows) -> T:
    """Rows of a value by their numbers, which are in range; records are cut, and parts without rows stay whole."""
    kind = row_type_of(type(value))
    if kind is not None:
        return value if kind.length(value) is None else cast("T", kind.take(value, rows))
    parts = parts_of(value)
    if parts is None:
        return value
    fresh = [take(part, rows) for part in parts.values()]
    return value if all(new is old for new, old in zip(fresh, parts.values(), strict=True)) else rebuild(value, fresh)


def costs_of(value: object) -> array[float] | None:
    """The costs of the rows of a value; of a record, those of the first part with rows. None if no type has costs."""
    first = _first_with_rows(value)
    kind = None if first is None else row_type_of(type(first))
    costs = None if kind is None or kind.costs is None else kind.costs(first)
    return None if costs is None else array("d", costs)


def _first_with_rows(value: Any) -> Any:
    if type(value) in PLAIN:
        return None
    kind = row_type_of(type(value))
    if kind is not None:
        return None if kind.length(value) is None else value
    parts = parts_of(value) or {}
    return next((found for part in parts.values() if (found := _first_with_rows(part)) is not None), None)


def size_in_bytes(value: object) -> int:
    """Size in bytes of an array, tensor or table; 0 if it has no `nbytes`."""
    try:
        nbytes = cast("Any", value).nbytes
    except Exception:  # a user's property, and sparse tensors, may raise anything
        return 0
    return nbytes if isinstance(nbytes, int) else 0


def refuse_unknown(value: object, path: str) -> None:
    """Refuse a value of an unknown type that is iterable, or has a length or items by index.

    Raises:
        DispatchError: The value is one of these; the message lists what to do.
    """
    kind = type(value)
    member = None if kind in PLAIN or row_type_of(kind) is not None else row_protocol(kind)
    if member is not None:
        raise refuse(value, path, member)


def is_unknown_object(value: object) -> bool:
    """Whether a value, or a part of a record, is an object of an undescribed class, with attributes of its own."""
    kind = type(value)
    if kind in PLAIN or row_type_of(kind) is not None or without_rows(kind):
        return False
    parts = parts_of(value)
    if parts is not None:
        return any(map(is_unknown_object, parts.values()))
    slots = any(vars(base).get("__slots__") for base in kind.__mro__)
    return not isinstance(value, Number) and (slots or bool(getattr(value, "__dict__", None)))
