"""Plans of tables: `resolve` counts their rows, and `part` cuts the rows of one reader; no value is needed for it.

Each keeps what it has made of a node, so that a node is looked at once, however many operations stand on it.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from twinkle_remote.errors import DispatchError
from twinkle_remote.rows.cut import compact, rows_within
from twinkle_remote.tables.nodes import Combined, Concat, Input, Join, Select, StoredRows, Take, below

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from twinkle_remote.protocol.messages import Outcome
    from twinkle_remote.tables.nodes import Node, Rows


def count(node: Node) -> int | None:
    """The number of rows of a resolved table; None where only its value shows it."""
    while isinstance(node, Join | Select):
        if isinstance(node, Join) and not node.counted:
            return None
        node = node.of[0] if isinstance(node, Join) else node.of
    if isinstance(node, StoredRows):
        return node.count if node.rows is None else len(node.rows)
    if isinstance(node, Concat):
        return len(node.order) if node.order is not None else node.ends[-1] if node.ends else None
    return len(node.of) if isinstance(node, Combined) and node.how == "list" else None


def bound(node: Node, leaf: Callable[[StoredRows], Node]) -> Node:
    """A table with another node for each of its leaves."""
    made: dict[int, Node] = {}

    def of(one: Node) -> Node:
        if id(one) not in made:
            made[id(one)] = one
            if isinstance(one, StoredRows):
                made[id(one)] = leaf(one)
            elif isinstance(one, Concat | Join):
                made[id(one)] = replace(one, of=tuple(map(of, one.of)))
            elif isinstance(one, Take | Select):
                made[id(one)] = replace(one, of=of(one.of))
        return made[id(one)]

    return of(node)


def resolve(node: Node, outcomes: Sequence[Outcome]) -> Node:
    """A bound table over the outcomes of its calls: takes become rows of what they take from.

    Args:
        node: The table.
        outcomes: Those of all inputs that it names.

    Raises:
        RowIndexError: There is no row of a number.
        DispatchError: The columns of tables are joined whose rows differ in number.
    """
    made: dict[int, Node] = {}

    def of(one: Node) -> Node:
        if id(one) not in made:
            made[id(one)] = _resolved(one, list(map(of, below(one))), outcomes)
        return made[id(one)]

    return of(node)


def _resolved(node: Node, of: Sequence[Node], outcomes: Sequence[Outcome]) -> Node:
    """A node over nodes that are resolved."""
    if isinstance(node, StoredRows):
        if not isinstance(node.payload, Input):
            return node
        outcome = outcomes[node.payload.index]
        return StoredRows(outcome.payload, node.rows, outcome.rows, outcome.columns)
    if isinstance(node, Combined):
        return _combined(node, of, outcomes)
    if isinstance(node, Take):
        total = count(of[0])
        return Take(of[0], node.rows) if total is None else part(of[0], rows_within(node.rows, total))
    if isinstance(node, Select):
        return Select(of[0], node.names)
    if isinstance(node, Concat):
        return _concatenated(of, node.results)
    counts = list(map(count, of))
    if None not in counts and len(set(counts)) > 1:
        raise DispatchError(f"join puts row next to row, and the values have {counts} rows: use as many in each")
    return Join(tuple(of), None not in counts, _all_names(of))


def _combined(node: Combined, of: Sequence[Node], outcomes: Sequence[Outcome]) -> Node:
    own = [outcomes[one.payload.index] for one in node.of if isinstance(one.payload, Input)]
    stored = [one for one in of if isinstance(one, StoredRows)]
    if node.once is not None and all(outcome.rows_given is None for outcome in own):
        stored, own = [stored[i] for i in node.once], [own[i] for i in node.once]
    if node.how == "one":
        return stored[0]
    over, counts = node.over(own), [outcome.rows for outcome in own]
    if node.how == "rows" and None not in counts and (not over.numbers or counts == list(map(len, over.numbers))):
        made = _concatenated(stored, node.name)
        return part(made, order_back(over.numbers)) if over.numbers else made
    return replace(over, of=tuple(stored), once=None)


def _concatenated(parts: Sequence[Node], results: str | None) -> Concat:
    """The rows of resolved tables; a concatenation among them is taken apart, so that one that grows stays flat."""
    flat: list[Node] = []
    for one in parts:
        inner = isinstance(one, Concat) and one.ends and one.order is None and one.results == results
        flat += one.of if isinstance(one, Concat) and inner else (one,)
    counts = [rows for rows in map(count, flat) if rows is not None]
    ends = (0, *accumulate(counts)) if len(counts) == len(flat) else ()
    kinds: dict[frozenset[Hashable] | None, int] = {}
    of_each = tuple([kinds.setdefault(_names(one), len(kinds)) for one in flat])
    return Concat(tuple(flat), ends, None, results, of_each if len(kinds) > 1 else (), _all_names(flat))


def _names(node: Node) -> frozenset[Hashable] | None:
    """The columns of a resolved table, where its type has columns; None elsewhere."""
    if isinstance(node, Combined | Take):
        return None
    if isinstance(node, Select) and _names(node.of) is None:
        return None
    return None if node.names is None else frozenset(node.names)


def _all_names(of: Sequence[Node]) -> frozenset[Hashable] | None:
    known = [names for names in map(_names, of) if names is not None]
    return frozenset[Any]().union(*known) if len(known) == len(of) else None


def part(node: Node, rows: Rows, made: dict[tuple[int, int], tuple[Rows, Node]] | None = None) -> Node:
    """Some rows of a resolved table whose rows are counted: what one reader needs.

    Args:
        node: The table.
        rows: Numbers of its rows.
        made: The parts of nodes that were made so far, with their rows, by the ids of both.
    """
    made = {} if made is None else made
    key = id(node), id(rows)
    if key not in made:
        made[key] = rows, _part(node, rows, made)
    return made[key][1]


def _part(node: Node, rows: Rows, made: dict[tuple[int, int], tuple[Rows, Node]]) -> Node:
    if isinstance(node, StoredRows):
        return replace(node, rows=_picked(node.rows, rows))
    if isinstance(node, Select):
        return Select(part(node.of, rows, made), node.names)
    if isinstance(node, Join):
        return replace(node, of=tuple([part(one, rows, made) for one in node.of]))
    if isinstance(node, Combined):
        return replace(node, of=tuple([node.of[row] for row in rows]))
    assert isinstance(node, Concat), node
    wanted = _picked(node.order, rows)  # each table below is cut once, and a repeated row is read once
    own = _runs(node.ends, wanted) if _is_run(wanted) else _scattered(node.ends, wanted)
    kept = sorted([*own, *_empty(node, own)])
    cut = [part(node.of[index], own.get(index, range(0)), made) for index in kept]
    ends = (0, *accumulate([len(own.get(index, ())) for index in kept]))
    order = None
    if not _is_run(wanted):
        first = dict(zip(kept, ends, strict=False))
        numbers = ((index, number, row) for index, rows in own.items() for number, row in enumerate(rows))
        place = {node.ends[index] + row: first[index] + number for index, number, row in numbers}
        order = compact(tuple([place[row] for row in wanted]))
        order = None if order == range(ends[-1]) else order
    kinds = tuple([node.kinds[index] for index in kept]) if node.kinds else ()
    return Concat(tuple(cut), ends, order, node.results, kinds, node.names)


def _is_run(rows: Rows) -> bool:
    return isinstance(rows, range) and rows.step == 1


def _runs(ends: Sequence[int], wanted: Rows) -> dict[int, Rows]:
    """The rows of each table among rows that follow each other."""
    own: dict[int, Rows] = {}
    if not wanted:
        return own
    start, stop = wanted[0], wanted[-1] + 1
    for index in range(bisect_right(ends, start) - 1, len(ends) - 1):
        if ends[index] >= stop:
            break
        if ends[index] < ends[index + 1]:
            own[index] = range(max(start, ends[index]) - ends[index], min(stop, ends[index + 1]) - ends[index])
    return own


def _scattered(ends: Sequence[int], wanted: Rows) -> dict[int, Rows]:
    """The rows of each table among rows in any order, each once and ascending."""
    own: dict[int, list[int]] = {}
    index = 0
    for row in sorted(set(wanted)):
        if row >= ends[index + 1]:
            index = bisect_right(ends, row) - 1
        own.setdefault(index, []).append(row - ends[index])
    return {index: compact(tuple(rows)) for index, rows in own.items()}


def _empty(node: Concat, own: dict[int, Rows]) -> Sequence[int]:
    """The tables of which a part needs no row: one for its type where it has no row at all, one for other columns."""
    if own and not node.kinds:
        return ()
    if not own:
        by_rows = sorted(range(len(node.of)), key=lambda index: node.ends[index] == node.ends[index + 1])
        by_kind = {kind: index for index, kind in reversed([(i, node.kinds[i]) for i in by_rows])} if node.kinds else {}
        return list(by_kind.values()) or by_rows[:1]
    there = {node.kinds[index] for index in own}
    return list({kind: index for index, kind in enumerate(node.kinds) if kind not in there}.values())


def order_back(numbers: Sequence[Rows]) -> Rows:
    """For each row of a call, its place among the rows of all ranks, one rank after the other.

    Args:
        numbers: The rows of each rank, by their numbers in the call.
    """
    places = [0] * sum(map(len, numbers))
    for place, number in enumerate([number for rows in numbers for number in rows]):
        places[number] = place
    return compact(tuple(places))


def _picked(known: Rows | None, rows: Rows) -> Rows:
    """Rows of rows."""
    if known is None:
        return rows
    if _is_run(rows):
        return known[rows[0] : rows[-1] + 1] if rows else range(0)
    return compact(tuple([known[row] for row in rows]))
