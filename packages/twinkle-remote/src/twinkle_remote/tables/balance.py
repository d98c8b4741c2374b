"""Balanced rows: rows go to ranks by their costs, in equal counts, and results come back in the order of the rows."""

from __future__ import annotations

from heapq import heappop, heapreplace
from math import isfinite
from typing import TYPE_CHECKING

from twinkle_mesh import balanced_slice
from twinkle_remote.errors import DispatchError
from twinkle_remote.rows.cut import compact, costs_of
from twinkle_remote.tables.nodes import Concat, Join, Select, StoredRows
from twinkle_remote.tables.plan import count

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from twinkle_remote.protocol.messages import Outcome
    from twinkle_remote.protocol.spec import CostRule
    from twinkle_remote.tables.nodes import Node, Rows


def divided(rule: bool | CostRule, costs: Sequence[float] | None, total: int, shares: int, name: str) -> Sequence[Rows]:
    """The rows of each share, ascending, as many as in `balanced_slice`; every process finds the same.

    Args:
        rule: False for rows one after the other; True, or a callable that takes the costs of all rows and returns
            others, for even sums of costs.
        costs: The cost of each row; None for 1 each.
        total: Number of rows.
        shares: Number of shares, at or above 1.
        name: Class.method, for messages.

    Raises:
        DispatchError: A cost is below 0 or not finite, or the callable returns another number of costs.
    """
    if rule is False:
        parts = [balanced_slice(total, shares, index) for index in range(shares)]
        return [range(part.start, part.stop) for part in parts]
    own = [1.0] * total if costs is None else costs
    if callable(rule):
        own = [float(cost) for cost in rule(own)]
    wrong = next((cost for cost in own if not isfinite(cost) or cost < 0), None)
    if wrong is not None or len(own) != total:
        found = f"{len(own)} costs for {total} rows" if wrong is None else f"the cost {wrong}"
        raise DispatchError(f"{name}: balance= needs a finite cost at or above 0 for each row, got {found}")
    return [compact(tuple(rows)) for rows in balanced_rows(own, shares)]


def balanced_rows(costs: Sequence[float], parts: int) -> list[list[int]]:
    """Return the rows of each part, ascending: as many as in `balanced_slice`, with sums of their costs that are even.

    The most expensive row goes first. Each row goes to the part with the lowest cost so far that is not full; of equal
    parts, to the one with fewer rows, then to the first. Rows of equal cost are divided into runs. This is the greedy
    rule of R. L. Graham, "Bounds on multiprocessing timing anomalies", with a limit of the number.

    Args:
        costs: The cost of each row, finite and at or above 0.
        parts: Number of parts, at least 1.
    """
    slices = [balanced_slice(len(costs), parts, index) for index in range(parts)]
    if all(cost == costs[0] for cost in costs):
        return [list(range(part.start, part.stop)) for part in slices]
    rows: list[list[int]] = [[] for _ in range(parts)]
    heap = [(0.0, 0, part) for part in range(parts)]
    for row in sorted(range(len(costs)), key=costs.__getitem__, reverse=True):
        cost, held, part = heap[0]
        rows[part].append(row)
        if held + 1 == slices[part].stop - slices[part].start:
            heappop(heap)
        else:
            heapreplace(heap, (cost + costs[row], held + 1, part))
    for part_rows in rows:
        part_rows.sort()
    return rows


def row_costs(node: Node, outcomes: Iterable[Outcome]) -> Sequence[float] | None:
    """The cost of each row of a resolved table, whose rows are counted; None if no value has costs.

    Args:
        node: The table.
        outcomes: Those that made its stored values; all other values are plain.
    """
    known = {id(outcome.payload): outcome.costs for outcome in outcomes}

    def of(one: Node) -> Sequence[float] | None:
        if isinstance(one, StoredRows):
            own = known[id(one.payload)] if id(one.payload) in known else costs_of(one.payload)
            return own if own is None or one.rows is None else [own[row] for row in one.rows]
        if isinstance(one, Join | Select):
            return of(one.of[0] if isinstance(one, Join) else one.of)
        if not isinstance(one, Concat):
            return None
        every = [(of(below), count(below) or 0) for below in one.of]
        if all(own is None for own, _ in every):
            return None
        costs = [cost for own, rows in every for cost in own or [1.0] * rows]
        return costs if one.order is None else [costs[row] for row in one.order]

    return of(node)
