"""The rows that each share reads of values with some rows each, counted row by row."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from twinkle_mesh import balanced_slice

if TYPE_CHECKING:
    from collections.abc import Sequence


def transfer_plan(lengths: Sequence[int], shares: int) -> list[list[tuple[int, int, int]]]:
    """For each share of all rows, the (value, first row, last row + 1) that it reads, in order."""
    rows = [(value, row) for value, length in enumerate(lengths) for row in range(length)]
    plan = []
    for share in range(shares):
        own = groupby(rows[balanced_slice(len(rows), shares, share)], itemgetter(0))
        pieces = [(value, [row for _, row in held]) for value, held in own]
        plan.append([(value, held[0], held[-1] + 1) for value, held in pieces])
    return plan
