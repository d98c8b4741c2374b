"""Checks of values: one rank's blocks, replicas, numbers that are not finite, and what has arrived."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from twinkle_ray.weights.errors import ManifestError, WeightSyncError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_ray.weights.messages import RankReport
    from twinkle_ray.weights.planning.box_plan import BoxPlan, Digests
    from twinkle_ray.weights.shards.box import Box

_log = logging.getLogger("twinkle.ray")
_SHOWN = 8


def check_facts(source: str, target: str, sent: Sequence[RankReport], written: Sequence[RankReport]) -> None:
    """Compare what the weights of both sides stand on.

    Args:
        source: Name of the source's component.
        target: Name of the target's.
        sent: Reports of the source's ranks.
        written: Reports of the target's ranks.

    Raises:
        ManifestError: They stand on something else: the same names and shapes would be another model there.
    """
    known = {name: value for report in sent for name, value in report.facts}
    for rank, report in enumerate(written):
        for name, value in report.facts:
            if known.get(name, value) != value:
                raise ManifestError(
                    f"{source} and {target} hold weights of the same names, but {name} is {known[name]} at the source "
                    f"and {value} at the target (rank {rank}): build both from the same model, with the same lora="
                )


def check_one_rank(source: str, apart: Sequence[Sequence[tuple[str, Box]]]) -> None:
    """Refuse blocks of one rank that overlap and differ: a sync would send one of the two.

    Args:
        source: Name of the source's component.
        apart: For each rank the tensors and boxes that two of its blocks hold with different values.

    Raises:
        ManifestError: There are some.
    """
    faults = [f"{name!r} at {box} on rank {rank}" for rank, of_rank in enumerate(apart) for name, box in of_rank]
    if faults:
        raise ManifestError(
            f"two Shards of one rank of {source}, the source of the weight sync, overlap and hold different values: "
            f"{_shown(faults)}; return each element once, or make the Shards equal"
        )


def check_finite(source: str, names: Sequence[Sequence[str]], *, refuse: bool) -> None:
    """Refuse values that are NaN or infinite, or have the log name them.

    Args:
        source: Name of the source's component.
        names: For each rank the tensors with such values.
        refuse: Raise; the log warns otherwise.

    Raises:
        WeightSyncError: There are some.
    """
    faults = [f"{name!r} on rank {rank}" for rank, of_rank in enumerate(names) for name in of_rank]
    if not faults:
        return
    text = f"{source}, the source of the weight sync, holds values that are not finite (NaN or infinite)"
    if refuse:
        raise WeightSyncError(
            f"{text}: {_shown(faults)}; nothing has moved, and the target keeps the weights that it had. Buffers that "
            'are meant to hold them: leave them out by select=, or use check="first"'
        )
    _log.warning("%s: %s; they are sent as they are, and check='always' refuses them", text, _shown(faults))


def _shown(faults: Sequence[str]) -> str:
    return ", ".join(faults[:_SHOWN]) + (f" and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else "")


def check_replicas(plan: BoxPlan, digests: Sequence[Digests], source: str) -> None:
    """Compare the blocks that several source ranks hold.

    Args:
        plan: The plan.
        digests: One mapping for each source rank.
        source: Name of the source's component.

    Raises:
        ManifestError: If the replicas differ; it names the component, tensors, blocks and ranks.
    """
    faults: dict[int, str] = {}
    for move, owners in plan.replicas:
        groups: dict[int, list[int]] = {}
        for rank in owners:
            groups.setdefault(digests[rank][move][0], []).append(rank)
        if len(groups) > 1 and move.entry not in faults:
            apart = " / ".join(", ".join(map(str, ranks)) for ranks in groups.values())
            faults[move.entry] = (
                f"{plan.entries[move.entry].source!r} at {move.box}: ranks {apart} hold different values"
            )
    if faults:
        more = f"\n  and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        raise ManifestError(
            "replicas of the source differ, and a sync would mix them:\n  "
            + "\n  ".join(list(faults.values())[:_SHOWN])
            + more
            + f"\nthe source is {source}: make its ranks equal first (one seed, one checkpoint, or a broadcast from "
            "one of them); "
            'check="never" takes each block from any of them'
        )


def check_arrival(plan: BoxPlan, sent: Sequence[Digests], received: Sequence[Digests]) -> None:
    """Compare the values in the target's tensors with those that the source sent.

    Raises:
        WeightSyncError: If they differ; it names tensors and ranks.
    """
    expected = {move: values[0] for of_rank in sent for move, values in of_rank.items()}
    wrong: dict[str, list[int]] = {}
    for rank, of_rank in enumerate(received):
        bad = {move.entry for move, values in of_rank.items() if set(values) != {expected[move]}}
        for entry in sorted(bad):
            wrong.setdefault(", ".join(map(repr, plan.entries[entry].targets)), []).append(rank)
    if wrong:
        listing = "; ".join(f"{names} on rank(s) {ranks}" for names, ranks in list(wrong.items())[:_SHOWN])
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise WeightSyncError(
            f"the target does not hold the values that the source sent: {listing}{more}; "
            "were weights of the source changed during the sync?"
        )
