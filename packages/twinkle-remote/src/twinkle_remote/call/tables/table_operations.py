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
    """Some rows of a value, in any order; of a lazy value a lazy one, for which nothing moves before somebody reads.

    Args:
        value: It has rows: a list, an array, a tensor, a dict of columns, a dataclass, Rollouts, a frame, a dataset.
        rows: A slice, which is cut to the rows that are there, or numbers of rows in any order, also repeated. Negative
            ones count from the end.

    Raises:
        TypeError: The rows are a bare number, flags, or no integers; or the value has no rows.
        IndexError: There is no row of a number; where the rows are counted later, the reader raises it.
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
    """The rows of all values, one after the other; lazy where one of them is.

    Args:
        values: At least one, all of one type.

    Raises:
        ValueError: There is none, or their rows do not join; of lazy values the reader raises it.
        TypeError: A value has no rows.
    """
    every = list(values)
    if not every:
        raise ValueError("concat needs at least one value: no value has no type")
    if not any(isinstance(value, Lazy) for value in every):
        return concatenated(every)
    return cast("T", table_of(every, _flat))


def _flat(nodes: Sequence[Node]) -> Node:
    return Concatenated(
        tuple([part for node in nodes for part in (node.of if isinstance(node, Concatenated) else (node,))])
    )


def join(*values: T) -> T:
    """The columns of all values, row next to row by position; lazy where one of them is.

    Args:
        *values: At least one, all of one type and of equally many rows. A later one wins a name; of frames the labels
            are those of the first.

    Raises:
        TypeError: A value has no columns, they are of several types, or none is given.
        ValueError: Their rows differ in number, or Rollouts in their sequences; of lazy values the reader raises it.
    """
    if not values:
        raise TypeError("join needs at least one value: no value has no columns")
    if not any(isinstance(value, Lazy) for value in values):
        return joined(values)
    return cast("T", table_of(values, lambda nodes: Joined(tuple(nodes))))


def select(value: T, *columns: Hashable) -> T:
    """Some columns of a value; of a lazy value a lazy one, whose other columns are not fetched.

    Args:
        value: It has columns: a dict of them, a dataclass (what is left out is None), Rollouts, a frame, a dataset.
        *columns: Their names, at least one.

    Raises:
        KeyError: There is no column of a name.
        TypeError: The value has no columns, or no name is given.
    """
    if not columns:
        raise TypeError("select needs the name of at least one column: a value of no columns has no rows")
    if not isinstance(value, Lazy):
        return selected(value, columns)
    return cast("T", table_of([value], lambda nodes: Selected(nodes[0], columns)))


def map(value: T, function: Callable[[T], R]) -> R:  # noqa: A001  named like Python's
    """The rows that a function makes of those of a value; of a lazy one it runs on each part where it lies.

    Args:
        value: It has rows.
        function: Takes rows, and returns rows, as many as it likes. It must not depend on where parts begin and end,
            and travels to the workers.

    Raises:
        DispatchError: Functions do not travel over HTTP.
    """
    if not isinstance(value, Lazy):
        return function(value)
    return cast("R", map_lazy(value, cast("Callable[[Any], Any]", function)))
