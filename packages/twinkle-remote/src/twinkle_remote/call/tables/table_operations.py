"""`take`, `concat`, `join`, `select` and `map`: tables of rows that lie on workers, without moving them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

from twinkle_remote.call.lazy_values.lazy import Lazy
from twinkle_remote.call.tables.mapping import map_lazy
from twinkle_remote.call.tables.table import table_of
from twinkle_remote.protocol.tables import Concatenated, Joined, Selected, Taken
from twinkle_remote.values.picking import concatenated, joined, row_numbers, selected, taken

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence
    from typing import SupportsIndex

    from twinkle_remote.protocol.tables import Node

T = TypeVar("T")
R = TypeVar("R")


def take(value: T, rows: slice | Iterable[SupportsIndex]) -> T:
    """Some rows of a value, in any order; for a lazy value the result is lazy, and no row moves before it is read.

    Args:
        value: A value with rows: a list, an array, a tensor, a dict of columns, a dataclass, Rollouts, a frame, a
            dataset.
        rows: A slice, which is limited to the existing rows, or row numbers in any order, with or without repeats.
            Negative numbers count from the end.

    Raises:
        TypeError: The rows are a bare number, flags, or no integers; or the value has no rows.
        IndexError: A row does not exist; if the rows are counted later, the reader raises it.
    """
    numbers = row_numbers(rows)
    if not isinstance(value, Lazy):
        return taken(value, numbers)
    return cast("T", table_of([value], lambda nodes: _taken(nodes[0], numbers)))


def _taken(node: Node, rows: slice | tuple[int, ...]) -> Node:
    """A take; one of numbers that were taken before is one of numbers."""
    if isinstance(node, Taken) and isinstance(node.rows, tuple):
        return Taken(node.of, tuple(taken(node.rows, rows)))
    return Taken(node, rows)


def concat(values: Iterable[T]) -> T:
    """The rows of all values, one after the other; lazy if one of them is lazy.

    Args:
        values: At least one, all of one type.

    Raises:
        ValueError: There is no value, or their rows cannot be joined; for lazy values the reader raises it.
        TypeError: A value has no rows.
    """
    every = list(values)
    if not every:
        raise ValueError("concat needs at least one value: without a value there is no type")
    if not any(isinstance(value, Lazy) for value in every):
        return concatenated(every)
    return cast("T", table_of(every, _flat))


def _flat(nodes: Sequence[Node]) -> Node:
    """One concatenation of all, so that a table which grows in a loop has no depth."""
    parts: list[Node] = []
    first: list[tuple[int, int]] = []
    for node in nodes:
        start = len(parts)
        if not isinstance(node, Concatenated):
            parts.append(node)
            continue
        parts += node.of
        first += [(begin + start, end + start) for begin, end in node.first]
        if len(node.of) > 1 and len(nodes) > 1:
            first.append((start, len(parts)))
    return Concatenated(tuple(parts), tuple(first))


def join(*values: T) -> T:
    """The columns of all values, with rows matched by position; lazy if one of them is lazy.

    Args:
        *values: At least one, all of one type, with the same number of rows. If a column name is repeated, the later
            column is used; a frame has the labels of the first frame.

    Raises:
        TypeError: A value has no columns, the values have several types, or there is no value.
        ValueError: Their numbers of rows differ, or the sequences of Rollouts differ; for lazy values the reader raises
            it.
    """
    if not values:
        raise TypeError("join needs at least one value: without a value there are no columns")
    if not any(isinstance(value, Lazy) for value in values):
        return joined(values)
    return cast("T", table_of(values, lambda nodes: Joined(tuple(nodes))))


def select(value: T, *columns: Hashable) -> T:
    """Some columns of a value; for a lazy value the result is lazy, and the other columns are not fetched.

    Args:
        value: A value with columns: a dict of columns, a dataclass (other fields become None), Rollouts, a frame, a
            dataset.
        *columns: Their names, at least one.

    Raises:
        KeyError: There is no column of a name.
        TypeError: The value has no columns, or no name is given.
    """
    if not columns:
        raise TypeError("select needs the name of at least one column: without a column there are no rows")
    if not isinstance(value, Lazy):
        return selected(value, columns)
    return cast("T", table_of([value], lambda nodes: Selected(nodes[0], columns)))


def map(value: T, function: Callable[[T], R]) -> R:  # noqa: A001  named like Python's
    """The result of a function of the rows; for a lazy value the function runs on the workers that hold the parts.

    Args:
        value: A value with rows.
        function: Takes rows and returns any number of rows. Its result must not depend on where parts begin and end. It
            is sent to the workers.

    Raises:
        DispatchError: Functions cannot be sent over HTTP.
    """
    if not isinstance(value, Lazy):
        return function(value)
    return cast("R", map_lazy(value, cast("Callable[[Any], Any]", function)))
