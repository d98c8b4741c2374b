"""Joining: the rows of several values as one, the inverse of cutting one value with `take`."""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING, Any, TypeVar

from twinkle_remote.errors import CollectError, DispatchError
from twinkle_remote.protocol.messages import Itself
from twinkle_remote.values.attributes import common_constants
from twinkle_remote.values.columns import below, columns, rebuild
from twinkle_remote.values.rows import common_length, equal, lengths, shape_of, splitter_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

T = TypeVar("T")
_PLAIN_ROWS = tuple(map(splitter_of, (list, tuple, range)))
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
        values: At least one, all of one shape. Parts without rows beside those that have some must be equal in all.
        path: What the values are, for messages.
        results: They are results of workers: a number beside rows is refused even if it is the same in all, because
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
            values = _numbers(values)
            first, splitter = values[0], splitter_of(list) or splitter
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


def _numbers(values: Sequence[Any]) -> Sequence[Any]:
    """Ranges as lists, beside lists: numbers that no range holds were joined to one."""
    return [list(value) for value in values]


def _by_column(values: Sequence[T], parts: Mapping[Any, object], path: str, results: bool) -> T:
    first = values[0]
    tables: list[Mapping[Any, Any]] = []
    for value in values:
        table = columns(value) if type(value) is type(first) else None
        if table is None or table.keys() != parts.keys():
            raise CollectError(
                f"{path}: flatten joins by column, but one has {_described(first, parts)}, "
                f"another {_described(value, table)}"
            )
        tables.append(table)
    joined = [join([table[key] for table in tables], below(path, first, key), results=results) for key in parts]
    try:
        made = rebuild(first, joined)
        if type(first) is not dict:
            common_constants([made, *(rebuild(value, joined) for value in values[1:])])
    except (DispatchError, ValueError) as error:
        raise CollectError(f"{path}: {error}") from error
    return made


def join_columns(values: Sequence[Any], path: str) -> tuple[Any, ...]:
    """The rows of all values part by part, where each is a tuple of the same number of parts.

    Raises:
        CollectError: They cannot be joined; the message says where and why.
    """
    sizes = sorted({len(value) if isinstance(value, tuple) else -1 for value in values})
    if len(sizes) > 1 or sizes[0] < 0:
        kinds = ", ".join(sorted({f"{type(value).__name__} {value!r:.40}" for value in values}))
        raise CollectError(f"{path}: the method is annotated to return a tuple of fixed length, got {kinds}")
    return tuple(join_results(part, f"{path}[{i}]") for i, part in enumerate(zip(*values, strict=True)))


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
