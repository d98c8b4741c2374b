"""Checks that a dataset is alike on all ranks that read it: its length, contents and order."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from twinkle_data.cursor import Cursor
from twinkle_data.errors import RanksDifferError
from twinkle_data.order.steps import DataShard

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeAlias

    from twinkle_data.cursor import Identity
    from twinkle_data.order.steps import StepPlan

    Facts: TypeAlias = Mapping[str, object]

_STEPS = 2
_ROWS = 64


def first_rows(plan: StepPlan) -> list[list[int]]:
    """Indices at the beginning of the first two epochs; empty lists for a stream."""
    found = []
    for epoch in range(2):
        steps = islice(plan.steps(Cursor(epoch), DataShard()), _STEPS)
        found.append([index for step in steps for index in step.indices[:_ROWS]])
    return found


def facts_of(identity: Identity, rows: list[list[int]], **more: object) -> dict[str, object]:
    """The facts that have to be alike on all ranks that read a dataset, by name.

    Args:
        identity: Of the dataset.
        rows: Its `first_rows`.
        more: Further options that decide which rows a rank reads.
    """
    names = "length", "algorithm", "seed", "fingerprint"
    return {**{name: getattr(identity, name) for name in names}, "order of the first rows": rows, **more}


def check_same(one: Facts, other: Facts, ranks: tuple[int, int]) -> None:
    """Compare what two ranks read.

    Args:
        one: The facts of the first.
        other: Those of the other.
        ranks: Their ranks.

    Raises:
        RanksDifferError: They differ; the message says in what.
    """
    differ = [
        f"{name}: {str(here)[:80]} and {str(other.get(name))[:80]}"
        for name, here in one.items()
        if here != other.get(name)
    ]
    if differ:
        raise rows_differ(ranks, "; ".join(differ))


def rows_differ(ranks: tuple[int, int], how: str) -> RanksDifferError:
    """The error for two ranks that read different rows.

    Args:
        ranks: The ranks.
        how: What differs.
    """
    return RanksDifferError(
        f"ranks {ranks[0]} and {ranks[1]} have different datasets or positions ({how}): rows would come twice "
        "or never. Build the same on each rank: sort what is listed (sorted(os.listdir(folder))), draw by a seed, "
        "divide nothing by rank, set the same epoch; where the rows are the same all the same, give "
        'fingerprint="..." to the loader'
    )


def orders_differ(who: str) -> RanksDifferError:
    """The error for a dataset that makes an order of its rows while it is read, and not the same one everywhere.

    Args:
        who: The two that differ.
    """
    return RanksDifferError(
        f"the dataset makes an order of its rows while it is read, and {who} have made different ones: rows would come "
        "twice or never. Make the order in __init__, from a seed, or leave it to shuffle=True"
    )
