"""The plan of a call as a table: the rows of each rank, and the ranks whose results are read; nothing runs."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec

from twinkle_remote.call.collect import combine_rule, ranks_read
from twinkle_remote.call.dispatch import dispatch
from twinkle_remote.call.send import bound_call
from twinkle_remote.context import driver_line
from twinkle_remote.protocol.messages import Replicated
from twinkle_remote.rows.cut import lengths
from twinkle_remote.sessions.session import running
from twinkle_remote.sessions.telemetry import table
from twinkle_remote.tables.nodes import LazySlot

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twinkle_remote.tables.nodes import Rows

P = ParamSpec("P")
_HOW = {
    "one": "its value",
    "list": "a list of their values",
    "rows": "their rows joined, in this order",
    "balanced": "their rows joined, in the order of the call's rows",
    "mean": "the mean of their values",
    "sum": "the sum of their values",
}


@dataclass(frozen=True, slots=True)
class Row:
    """The table's line of one rank.

    Attributes:
        rank: Rank of the group.
        coordinate: Its coordinate on the mesh, by dim; empty without a mesh.
        arguments: Each argument as text: type and rows, or the value.
        rows: Rows that it receives; None if nothing is split, or only the workers can count them.
        read: Whether collect reads its result.
    """

    rank: int
    coordinate: Mapping[str, int]
    arguments: Mapping[str, str]
    rows: int | None
    read: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """The table of one call; `str` draws it.

    Attributes:
        name: Class.method.
        group: The component's group.
        rows: One for each called rank.
        reads: Ranks whose results collect reads, in order.
        collect: How collect combines them, as text.
    """

    name: str
    group: str
    rows: tuple[Row, ...]
    reads: tuple[int, ...]
    collect: str

    def __str__(self) -> str:
        arguments = list(self.rows[0].arguments)
        head = ["rank", "coordinate", *arguments, "read"]
        body = [
            [
                str(row.rank),
                " ".join(f"{dim}={index}" for dim, index in row.coordinate.items()) or "-",
                *(row.arguments[name] for name in arguments),
                "yes" if row.read else "",
            ]
            for row in self.rows
        ]
        order = ", ".join(map(str, self.reads))
        lines = table([head, *body], len(head))
        return "\n".join([f"{self.name} on {self.group}", *lines, f"collect: ranks {order}: {self.collect}"])


def explain(bound_method: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Explanation:
    """The dispatch and collect of a call as a table, without running it.

    Raises:
        TypeError: It is not a remote function of a component, or does not take the arguments.
        DispatchError: The call itself would raise the same error.
    """
    call = bound_call(bound_method, args, kwargs, driver_line())
    spec, names = call.spec, call.names
    if spec.calls_one:
        call = running().loads.peek(call)
    ranks, mesh = call.ranks, call.mesh
    shares = dispatch(call, _store_nothing)
    read = ranks_read(spec, ranks, mesh, each=shares.each is not False)
    rows = []
    for rank, index in zip(ranks, shares.of_rank, strict=True):
        given_args, given_kwargs = shares.arguments[index]
        part = shares.parts[index] if shares.parts else None
        arguments = {
            key: _described(value, part, whole=_is_whole(value, before))
            for key, before, value in zip(
                [*names, *given_kwargs], [*args, *kwargs.values()], [*given_args, *given_kwargs.values()], strict=False
            )
        }
        coordinate = {} if mesh is None or rank not in mesh else mesh.coordinate(rank)
        rows.append(Row(rank, coordinate, arguments, shares.rows(index), rank in read))
    how = combine_rule(spec, ranks)
    if how == "rows" and spec.balance is not False:
        how = "balanced"
    collect = _HOW[how] if isinstance(how, str) else f"what {getattr(how, '__qualname__', how)} makes of them"
    return Explanation(call.name, call.component.group, tuple(rows), tuple(read), collect)


def _store_nothing(value: object) -> None:
    """Used instead of `Store.put`: no call is made, so nothing is stored."""


def _is_whole(value: object, before: object) -> bool:
    return value is (before.value if isinstance(before, Replicated) else before)


def _described(value: Any, part: Rows | None, *, whole: bool) -> str:
    if isinstance(value, LazySlot):
        return "its rows of a lazy result" if value.split else "a lazy result"
    kind = type(value).__name__
    rows = {rows for _, rows in lengths(value, "")}
    if len(rows) != 1:
        return reprlib.repr(value)
    if whole or part is None:
        return f"{kind}, all {rows.pop()} rows"
    return f"{kind}[{part.start}:{part.stop}]" if isinstance(part, range) else f"{kind}[{reprlib.repr(list(part))}]"
