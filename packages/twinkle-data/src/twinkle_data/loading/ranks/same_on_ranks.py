"""Checks that a dataset is alike on all ranks that read it: its length, contents and order."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from twinkle_data.cursor import Cursor
from twinkle_data.errors import RanksDifferError
from twinkle_data.order.steps import DataShard

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_data.cursor import Identity
    from twinkle_data.order.steps import StepPlan

_STEPS = 2
_ROWS = 64


def first_rows(plan: StepPlan) -> list[list[int]]:
    """Indices at the beginning of the first two epochs; empty lists for a stream."""
    found = []
    for epoch in range(2):
        steps = islice(plan.steps(Cursor(epoch), DataShard()), _STEPS)
        found.append([index for step in steps for index in step.indices[:_ROWS]])
    return found


def check_same(
    one: Identity, one_rows: Sequence[object], other: Identity, other_rows: Sequence[object], ranks: tuple[int, int]
) -> None:
    """Compare what two ranks read.

    Args:
        one: Of the first.
        one_rows: Its `first_rows`.
        other: Of the other.
        other_rows: Its `first_rows`.
        ranks: Their ranks.

    Raises:
        RanksDifferError: They differ; the message says in what.
    """
    pairs = [
        (name, getattr(one, name), getattr(other, name)) for name in ("length", "algorithm", "seed", "fingerprint")
    ]
    pairs.append(("order of the first rows", list(one_rows), list(other_rows)))
    differ = [f"{name}: {str(here)[:80]} and {str(there)[:80]}" for name, here, there in pairs if here != there]
    if differ:
        raise RanksDifferError(
            f"ranks {ranks[0]} and {ranks[1]} have different datasets ({'; '.join(differ)}): rows would come twice "
            "or never. Build the same on each rank: sort what is listed (sorted(os.listdir(folder))), draw by a seed; "
            'where the rows are the same all the same, give fingerprint="..." to the loader'
        )
