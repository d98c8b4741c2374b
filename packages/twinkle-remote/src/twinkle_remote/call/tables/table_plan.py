"""Tables as plain lists, for a session in another process that holds their lazy results and makes them again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_remote.call.lazy_values.lazy import source_of
from twinkle_remote.call.tables.table import Table
from twinkle_remote.call.tables.table_operations import concat, join, select, take
from twinkle_remote.protocol.tables import Concatenated, Constant, Given, Joined, Mapped, Narrowed, Selected, nested

if TYPE_CHECKING:
    from twinkle_remote.call.lazy_values.lazy import Lazy
    from twinkle_remote.protocol.tables import Node


def plan_of(table: Lazy[Any]) -> list[Any]:
    """The plan of a table: words with their arguments, its plain values, and the lazy results that it reads from.

    Raises:
        TypeError: It holds a function, or is one that no word makes.
    """
    source = source_of(table)
    assert isinstance(source, Table)

    def listed(node: Node) -> list[Any]:
        if isinstance(node, Given):
            return ["value", source.leaves[node.part]]
        if isinstance(node, Constant):
            return ["value", node.value]
        if isinstance(node, Concatenated):
            return ["concat", nested(node, [listed(part) for part in node.of], lambda parts: ["concat", list(parts)])]
        if isinstance(node, Joined):
            return ["join", [listed(part) for part in node.of]]
        if isinstance(node, Mapped | Narrowed):
            raise TypeError(
                f"a table with a {type(node).__name__.lower()} part has no plan that can be sent: use get(x)"
            )
        if isinstance(node, Selected):
            return ["select", listed(node.of), list(node.columns)]
        return ["take", listed(node.of), node.rows if isinstance(node.rows, slice) else list(node.rows)]

    return listed(source.node)


def table_by(plan: object) -> Any:
    """The table of a plan, whose lazy results are those of this session.

    Raises:
        ValueError: It is no plan.
        DispatchError: A row, or a column, is not there; if rows are counted later, the reader raises it.
    """
    if not isinstance(plan, list) or not plan or not isinstance(plan[0], str):
        raise ValueError("a plan is a word with its arguments")
    word, *given = plan
    if word == "value" and len(given) == 1:
        return given[0]
    if word in ("concat", "join") and len(given) == 1 and isinstance(given[0], list) and given[0]:
        parts = [table_by(part) for part in given[0]]
        return concat(parts) if word == "concat" else join(*parts)
    if word in ("select", "take") and len(given) == 2 and isinstance(given[1], list | slice):
        if word == "take":
            return take(table_by(given[0]), given[1])
        if isinstance(given[1], list) and given[1]:
            return select(table_by(given[0]), *given[1])
    raise ValueError(f"{word!r:.40} with {len(given)} arguments is no word of a plan")
