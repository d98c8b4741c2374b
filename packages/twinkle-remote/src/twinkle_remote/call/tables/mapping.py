"""Applies a function to the parts of a lazy value, on the workers that hold them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from twinkle_remote.call.collect import combined_by, ranks_read
from twinkle_remote.call.lazy_values.assembled import AssembledRows, assemble
from twinkle_remote.call.lazy_values.call_result import CallResult
from twinkle_remote.call.lazy_values.lazy import Lazy, lazy_part, source_of
from twinkle_remote.call.pending.part import part_of
from twinkle_remote.call.start import start
from twinkle_remote.call.tables.table import Table, table_of
from twinkle_remote.errors import DispatchError, NotInitializedError
from twinkle_remote.failures.frames import call_line
from twinkle_remote.protocol.call import Call
from twinkle_remote.protocol.spec import FunctionSpec
from twinkle_remote.protocol.tables import Concatenated, Given, Mapped
from twinkle_remote.sessions.current import running

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from twinkle_mesh import DeviceMesh
    from twinkle_remote.call.pending.pending_call import PendingCall


def map_lazy(value: Lazy[Any], function: Callable[[Any], Any]) -> Any:
    """A lazy value of what a function makes of each part of another.

    Where the parts of a value are not known before it is read, the function runs where it is read.

    Args:
        value: The value.
        function: Takes rows, and returns rows.

    Raises:
        DispatchError: The session is another process's: functions cannot be sent over HTTP.
    """
    if running().served is not None:
        raise DispatchError(
            "map does not work over HTTP, because functions cannot be sent: make it a remote function of a class"
        )
    try:
        parts = _parts(value, function)
    except NotInitializedError:  # the component was released; its results are still there
        parts = None
    if parts is None:
        return table_of([value], lambda nodes: Mapped(nodes[0], function))
    return parts[0] if len(parts) == 1 else table_of(parts, lambda nodes: Concatenated(tuple(nodes)))


def _parts(value: Lazy[Any], function: Callable[[Any], Any]) -> Sequence[Lazy[Any]] | None:
    source = source_of(value)
    if isinstance(source, AssembledRows):
        return [_applied(piece.call, piece.rank, assemble([piece]), function) for piece in source.pieces]
    if isinstance(source, CallResult):
        return _of_call(value, source.calls[0], function)
    if not isinstance(source, Table):
        return None
    node = source.node
    nodes = node.of if isinstance(node, Concatenated) else (node,)
    found: list[Lazy[Any]] = []
    for part in nodes:
        own = _parts(source.leaves[part.part], function) if isinstance(part, Given) else None
        if own is None:
            return None
        found += own
    return found


def _of_call(value: Lazy[Any], call: PendingCall, function: Callable[[Any], Any]) -> Sequence[Lazy[Any]] | None:
    by = combined_by(call.spec, call.ranks, call.mesh)
    if (
        by.how not in ("rows", "one")
        or by.padded
        or by.columns_unknown
        or call.each is None
        or call.spec.balance is not False
    ):
        return None
    ranks = ranks_read(call.spec, call.ranks, call.mesh, each=bool(call.each))
    if len(ranks) == 1:
        return [_applied(call, ranks[0], value, function)]
    return [
        _applied(call, rank, lazy_part(value, part_of(call, [rank], place)), function)
        for place, rank in enumerate(ranks)
    ]


def _applied(call: PendingCall, rank: int, part: Lazy[Any], function: Callable[[Any], Any]) -> Lazy[Any]:
    """The function's result for a part, on the rank that holds it."""
    component = replace(call.call.component, ranks=(rank,))

    def give(
        length: int, i: int, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: DeviceMesh | None
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        return (part, function), {}

    spec = FunctionSpec(dispatch=give, collect="first")
    name = f"{component.name}.{getattr(function, '__name__', 'function')}"
    return Lazy(start(Call("function", component, apply, name, spec, call_line())))


def apply(component: object, part: Any, function: Callable[[Any], Any]) -> Any:
    """Runs on a worker."""
    return function(part)
