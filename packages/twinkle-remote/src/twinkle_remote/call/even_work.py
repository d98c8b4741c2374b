"""Even work: rows go to ranks by their costs, and the results come back in the order of the rows."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from twinkle_mesh import balanced_rows
from twinkle_remote.errors import DispatchError
from twinkle_remote.values.picking import rows_within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.protocol.spec import CostRule
    from twinkle_remote.protocol.tables import Rows


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
    return [rows_within(tuple(rows), total) for rows in balanced_rows(own, count)]


def order_back(numbers: Sequence[Rows]) -> Rows:
    """For each row of a call, its place among the rows of all ranks, one rank after the other.

    Args:
        numbers: The rows of each rank, by their numbers in the call.
    """
    places = [0] * sum(map(len, numbers))
    for place, number in enumerate([number for rows in numbers for number in rows]):
        places[number] = place
    return rows_within(tuple(places), len(places))
