"""Joining: the rows of several values as one, the inverse of cutting one value with `take`."""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING, Any, TypeVar, cast

from twinkle_remote.errors import CollectError, DispatchError
from twinkle_remote.protocol.messages import Itself
from twinkle_remote.values.attributes import common_constants
from twinkle_remote.values.columns import columns, is_mapping, part_path, rebuild, with_items
from twinkle_remote.values.left_out import LeftOut
from twinkle_remote.values.rows import common_length, equal, lengths, shape_of, splitter_of
from twinkle_remote.values.sequences import Ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

T = TypeVar("T")
_PLAIN_ROWS = tuple(map(splitter_of, (list, tuple, range)))
_MISSING = object()
_WAYS_OUT = "return a list, array or tensor, or collect with 'none', 'first', 'mean' or 'sum'"


def join_results(values: Sequence[T], path: str) -> T:
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
    try:
        rows = [common_length(list(lengths(value, path))) is not None for value in values]
    except DispatchError as error:
        raise CollectError(str(error)) from error
    if not any(rows):
        raise CollectError(
            f"{path}: flatten joins rows, and {type(first).__name__} has none (got {_shown(values)}); {_WAYS_OUT}"
        )
    return join(values, path, results=True)


def join(values: Sequence[T], path: str = "result", *, results: bool = False) -> T:
    """The rows of all values in order.

    Args:
        values: At least one, all of one shape. Parts without rows next to those that have some must be equal in all.
            Where mappings have other columns, rows have None in those that they lack; the order is that of the first.
        path: What the values are, for messages.
        results: They are results of workers: a number next to rows is refused even if it is the same in all, because
            whether it is a sum, a mean or a constant is not known; so is a tuple of parts that have rows themselves.

    Raises:
        CollectError: They cannot be joined; the message says where and why.
    """
    first = values[0]
    if len(values) == 1:
        return first
    splitter = splitter_of(type(first))
    if splitter is not None and splitter.length(first) is not None:
        kinds: set[Any] = set(map(type, values))
        if kinds == {list, range}:
            return cast("T", _concat(Ranges().concat, cast("Any", values), path))
        strangers = sorted({type(value).__name__ for value in values if splitter_of(type(value)) is not splitter})
        if strangers:
            raise CollectError(
                f"{path}: flatten joins values of one type, got {type(first).__name__} and {', '.join(strangers)}"
            )
        full = [value for value in values if splitter.length(value)]
        if results and full and isinstance(first, tuple):
            _refuse_parts(full, path)
        return _concat(splitter.concat, full or values[:1], path)
    parts = columns(first)
    return _same(values, path, results) if parts is None else _by_column(values, parts, path, results)


def _refuse_parts(values: Sequence[Any], path: str) -> None:
    """Refuse tuples of arrays, tensors or frames: they are parts, as layers are, and not rows."""
    if all(splitter_of(type(part)) not in (None, *_PLAIN_ROWS) for value in values for part in value):
        kind = type(values[0][0]).__name__
        raise CollectError(
            f"{path}: flatten joins rows, and a tuple of values of type {kind} may be rows or parts (each rank has "
            f"{[len(value) for value in values]}); return a list of rows, or name the parts in a dict"
        )


def _by_column(values: Sequence[T], parts: Mapping[Any, object], path: str, results: bool) -> T:
    first = values[0]
    tables: list[Mapping[Any, Any]] = []
    for value in values:
        table = columns(value) if type(value) is type(first) else None
        if table is None or (table.keys() != parts.keys() and not is_mapping(value)):
            raise CollectError(
                f"{path}: flatten joins by column, but one has {_described(first, parts)}, "
                f"another {_described(value, table)}"
            )
        tables.append(table)
    names = dict.fromkeys(key for table in tables for key in table)
    rows = [_rows(value, path) for value in values] if any(len(table) < len(names) for table in tables) else []
    joined: dict[Any, object] = {}
    for name in names:
        place = part_path(path, first, name)
        found = [table[name] for table in tables if name in table]
        mark = next((part for part in found if type(part) is LeftOut), None)
        if mark is not None:
            joined[name] = mark[:]
            continue
        if len(found) < len(tables):
            found = _with_missing([table.get(name, _MISSING) for table in tables], rows, place)
        joined[name] = join(found, place, results=results)
    try:
        made = _made_again(first, joined)
        if type(first) is not dict:
            common_constants([made, *(_made_again(value, joined) for value in values[1:])])
    except (DispatchError, ValueError) as error:
        raise CollectError(f"{path}: {error}") from error
    return made


def _made_again(value: T, joined: dict[Any, object]) -> T:
    return with_items(value, joined) if is_mapping(value) else rebuild(value, list(joined.values()))


def _rows(value: object, path: str) -> int | None:
    """Rows of a mapping; without any column it has 0, as what a method makes of no rows."""
    try:
        return 0 if not columns(value) else common_length(list(lengths(value, path)))
    except DispatchError as error:
        raise CollectError(str(error)) from error


def _with_missing(parts: Sequence[object], rows: Sequence[int | None], path: str) -> list[object]:
    """A column of some mappings, with None for each row of the others, as datasets has it; those without rows add none.

    Raises:
        CollectError: The column is no list or tuple, so that None cannot stand in it, or the rows of a mapping without
            it cannot be counted.
    """
    there = next(part for part in parts if part is not _MISSING)
    kind = tuple if isinstance(there, tuple) else list
    found: list[object] = []
    for part, count in zip(parts, rows, strict=True):
        if part is not _MISSING:
            found.append(part)
        elif count != 0:
            if count is None or splitter_of(type(there)) not in _PLAIN_ROWS:
                raise CollectError(
                    f"{path}: flatten joins by column, and one value of {count or 'no'} rows has no such column: None "
                    f"stands for what is missing in a list, and this is a {type(there).__name__}; give all values the "
                    "column, or make it a list"
                )
            found.append(kind([None] * count))
    return found


def join_columns(values: Sequence[Any], path: str) -> tuple[Any, ...]:
    """The rows of all values part by part, where each is a tuple of the same number of parts.

    Raises:
        CollectError: They cannot be joined; the message says where and why.
    """
    check_columns(values, path)
    return tuple(join_results(part, f"{path}[{i}]") for i, part in enumerate(zip(*values, strict=True)))


def check_columns(values: Sequence[Any], path: str) -> None:
    """Refuse values that are no tuples of the same number of parts.

    Raises:
        CollectError: They are others.
    """
    sizes = sorted({len(value) if isinstance(value, tuple) else -1 for value in values})
    if len(sizes) > 1 or sizes[0] < 0:
        kinds = ", ".join(sorted({f"{type(value).__name__} {value!r:.40}" for value in values}))
        raise CollectError(f"{path}: the method is annotated to return a tuple of fixed length, got {kinds}")


def _described(value: object, parts: Mapping[Any, object] | None) -> str:
    return type(value).__name__ if parts is None else f"{type(value).__name__} of {', '.join(map(str, parts)) or '-'}"


def _concat(concat: Callable[[Sequence[T]], T], values: Sequence[T], path: str) -> T:
    if len(values) == 1:
        return values[0]
    try:
        return concat(values)
    except Exception as error:  # each library raises its own errors
        shapes = [shape_of(value) for value in values]
        raise CollectError(f"{path}: the parts do not join, their shapes are {shapes}: {error}") from error


def _same(values: Sequence[T], path: str, results: bool) -> T:
    first = values[0]
    number = results and (isinstance(first, numbers.Number) or splitter_of(type(first)) is not None)
    number = number and not isinstance(first, str | bytes)
    if not number and all(value is first or equal(value, first) for value in values[1:]):
        return first
    raise CollectError(
        f"{path}: flatten joins rows, and {type(first).__name__} has none (got {_shown(values)}); {_WAYS_OUT}"
    )


def _shown(values: Sequence[object]) -> str:
    return ", ".join(repr(value)[:40] for value in values[:4])
