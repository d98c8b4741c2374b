"""What a call would do, as a table: which rank gets which rows, and whose results are read; nothing runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec

from twinkle_remote.backends.memory import Memory
from twinkle_remote.collect import how_made, ranks_read
from twinkle_remote.dispatch import dispatch
from twinkle_remote.handle import NAMES
from twinkle_remote.protocol import HandedSlot
from twinkle_remote.split import rows_of
from twinkle_remote.submit import remote_part

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
_HOW = {"one": "its value", "list": "a list of their values", "rows": "their rows joined, in this order"}


@dataclass(frozen=True, slots=True)
class Row:
    """One rank's line.

    Attributes:
        rank: Rank of the group.
        coordinate: Its coordinate on the mesh, by dim; empty without one.
        arguments: Each argument as text: rows or type.
        rows: Rows that it is given; None when nothing is split or only the workers will know.
        read: Whether collect reads its result.
    """

    rank: int
    coordinate: dict[str, int]
    arguments: dict[str, str]
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
        collect: What it makes of them.
    """

    name: str
    group: str
    rows: tuple[Row, ...]
    reads: tuple[int, ...]
    collect: str

    def __str__(self) -> str:
        names = list(self.rows[0].arguments)
        head = ["rank", "coordinate", *names, "read"]
        body = [
            [
                str(row.rank),
                " ".join(f"{dim}={index}" for dim, index in row.coordinate.items()) or "-",
                *(row.arguments[name] for name in names),
                "yes" if row.read else "",
            ]
            for row in self.rows
        ]
        widths = [max(len(line[i]) for line in [head, *body]) for i in range(len(head))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in [head, *body]
        ]
        order = ", ".join(map(str, self.reads))
        return "\n".join([f"{self.name} on {self.group}", *lines, f"collect: ranks {order}: {self.collect}"])


def explain(bound_method: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> Explanation:
    """The dispatch and collect of a call as a table, without running it.

    Args:
        bound_method: `component.method`.
        *args: Its positional arguments.
        **kwargs: Its keyword arguments.

    Raises:
        TypeError: It is not a remote function of a component.
        DispatchError: The call itself would raise it.
    """
    component, spec = remote_part(bound_method)
    names = [*getattr(bound_method, NAMES)[: len(args)]]
    names += [f"args[{i}]" for i in range(len(names), len(args))]
    name = f"{component.name}.{getattr(bound_method, '__name__', '')}"
    ranks = component.ranks[:1] if spec.execute == "first" else component.ranks
    mesh = component.mesh
    shares = dispatch(spec, names, args, kwargs, ranks=ranks, mesh=mesh, store=Memory(), name=name)
    read = ranks_read(spec.collect, ranks, mesh)
    rows = []
    for i, rank in enumerate(ranks):
        given_args, given_kwargs = shares.arguments[shares.of_rank[i]]
        shown = dict(zip(names, map(_told, given_args), strict=False)) | {k: _told(v) for k, v in given_kwargs.items()}
        coordinate = {} if mesh is None or rank not in mesh.ranks else dict(mesh.coordinate(rank))
        given = shares.rows[shares.of_rank[i]] if shares.rows else None
        rows.append(Row(rank, coordinate, shown, given, rank in read))
    how = how_made(spec, ranks)
    collect = _HOW.get(how) if isinstance(how, str) else None
    return Explanation(name, component.group, tuple(rows), tuple(read), collect or f"collected by {how}")


def _told(value: Any) -> str:
    if isinstance(value, HandedSlot):
        return "its rows of a lazy result" if value.split else "a lazy result"
    rows = rows_of(value)
    text = type(value).__name__ if rows is None else f"{type(value).__name__}, {rows} rows"
    short = repr(value)
    return short if len(short) <= 24 else text
