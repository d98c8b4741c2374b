"""Balanced rows: rows go to ranks by their costs, in equal counts, and results come back in the order of the rows."""

from __future__ import annotations

from heapq import heappop, heapreplace
from math import isfinite
from typing import TYPE_CHECKING

from twinkle_mesh import balanced_slice
from twinkle_remote.errors import DispatchError
from twinkle_remote.rows.cut import compact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.protocol.spec import CostRule
    from twinkle_remote.tables.nodes import Rows


def assigned(rule: bool | CostRule, costs: Sequence[float] | None, total: int, count: int, name: str) -> list[Rows]:
    """The rows of each share, ascending; every process finds the same.

    Args:
        rule: True, or a callable that takes the costs of all rows and returns others.
        costs: The cost of each row; None for 1 each.
        total: Number of rows.
        count: Number of shares, at or above 1.
        name: Class.method, for messages.

    Raises:
        DispatchError: A cost is below 0 or not finite, or the callable returns another number of costs.
    """
    own = [1.0] * total if costs is None else costs
    if callable(rule):
        own = [float(cost) for cost in rule(own)]
    wrong = next((cost for cost in own if not isfinite(cost) or cost < 0), None)
    if wrong is not None or len(own) != total:
        found = f"{len(own)} costs for {total} rows" if wrong is None else f"the cost {wrong}"
        raise DispatchError(f"{name}: balance= needs a finite cost at or above 0 for each row, got {found}")
    return [compact(tuple(rows)) for rows in balanced_rows(own, count)]


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
        cost, count, part = heap[0]
        rows[part].append(row)
        if count + 1 == slices[part].stop - slices[part].start:
            heappop(heap)
        else:
            heapreplace(heap, (cost + costs[row], count + 1, part))
    for part_rows in rows:
        part_rows.sort()
    return rows


def order_back(numbers: Sequence[Rows]) -> Rows:
    """For each row of a call, its place among the rows of all ranks, one rank after the other.

    Args:
        numbers: The rows of each rank, by their numbers in the call.
    """
    places = [0] * sum(map(len, numbers))
    for place, number in enumerate([number for rows in numbers for number in rows]):
        places[number] = place
    return compact(tuple(places))
