"""`take`, `concat`, `join`, `select` and `map`: tables of rows that lie on workers, without moving them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from twinkle_remote.call.collect import combined_by, ranks_read
from twinkle_remote.call.send import part_of, start
from twinkle_remote.context import call_line
from twinkle_remote.errors import DispatchError, NotInitializedError
from twinkle_remote.lazy.lazy import CallResult, Lazy, lazy_over, source_of
from twinkle_remote.lazy.table import Table, node_of, table_of
from twinkle_remote.protocol.messages import Call
from twinkle_remote.protocol.spec import FunctionSpec
from twinkle_remote.rows.columns import concatenated, joined, selected, taken
from twinkle_remote.rows.cut import row_numbers
from twinkle_remote.tables.nodes import Concat, Join, RankResult, Select, StoredRows, Take

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
    from typing import SupportsIndex

    from twinkle_mesh import DeviceMesh
    from twinkle_remote.call.pending import PendingCall
    from twinkle_remote.tables.nodes import Node

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
    if isinstance(node, Take) and isinstance(node.rows, tuple):
        return Take(node.of, tuple(taken(list(node.rows), rows)))
    return Take(node, rows)


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
    return Concat(
        tuple(
            [
                part
                for node in nodes
                for part in (node.of if isinstance(node, Concat) and node.results is None else (node,))
            ]
        )
    )


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
    return cast("T", table_of(values, lambda nodes: Join(tuple(nodes))))


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
    return cast("T", table_of([value], lambda nodes: Select(nodes[0], columns)))


def map(value: T, function: Callable[[T], R]) -> R:  # noqa: A001  named like Python's
    """The result of a function of the rows; for a lazy value it runs once, on the workers that hold the rows.

    Args:
        value: A value with rows.
        function: Takes rows and returns any number of rows. Its result must not depend on where parts begin and end:
            each worker calls it with the rows that it has made. Rows that were taken, joined or selected before are
            first fetched by one of the workers. It is sent to the workers.

    Raises:
        DispatchError: Functions cannot be sent over HTTP; or the component that made the rows was released.
    """
    if not isinstance(value, Lazy):
        return function(value)
    try:
        call = source_of(value).calls[0]
        made = [_applied(*part, function) for part in _parts(node_of(value)) or [(call, call.ranks[0], value)]]
    except NotInitializedError as error:
        raise DispatchError(f"map runs where the rows are, and {error}; use function(get(value))") from error
    return cast("R", made[0] if len(made) == 1 else table_of(made, _flat))


def _parts(node: Node) -> Sequence[tuple[PendingCall, int, Lazy[Any]]] | None:
    """Each part of a table, with the rank of a call that holds it; None if its parts are no ranks'."""
    if isinstance(node, Concat):
        every = [_parts(one) for one in node.of]
        return None if None in every else [one for parts in every for one in parts or ()]
    payload = node.payload if isinstance(node, StoredRows) else None
    if isinstance(payload, RankResult):
        return [(*payload, lazy_over(Table(node)))]
    if not isinstance(payload, Lazy) or not isinstance(source_of(payload), CallResult):
        return None
    call = source_of(payload).calls[0]
    by = combined_by(call.spec, call.ranks, call.mesh)
    if by.how not in ("rows", "one") or call.each is None or call.spec.balance is not False:
        return None
    ranks = ranks_read(call.spec, call.ranks, call.mesh, each=bool(call.each))
    return [(call, rank, payload if len(ranks) == 1 else Lazy(part_of(call, [rank]))) for rank in ranks]


def _applied(call: PendingCall, rank: int, part: Lazy[Any], function: Callable[[Any], Any]) -> Lazy[Any]:
    """The function's result for a part, on the rank that holds it."""
    component = replace(call.call.component, ranks=(rank,))

    def give(
        length: int, i: int, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: DeviceMesh | None
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        return (part, function), {}

    spec = FunctionSpec(dispatch=give, collect="first")
    name = f"{component.name}.{getattr(function, '__name__', 'function')}"
    return Lazy(start(Call("function", component, _apply, name, spec, call_line())))


def _apply(component: object, part: Any, function: Callable[[Any], Any]) -> Any:
    """Runs on a worker."""
    return function(part)
