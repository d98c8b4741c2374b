"""The result of a sync: its version, the tensors that changed, and digests of the values at both ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from twinkle_ray.weights.errors import ManifestError, WeightSyncError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_ray.weights.planning.transfer_plan import Digests, Move, TransferPlan

_SHOWN = 8
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class WeightDelivery:
    """The result of one sync.

    Attributes:
        version: Of the weights, counted from 1.
        changed: Target names of the tensors that have other values than before on some rank, in the source's order.
        sent: By target name, a digest of the values that the source sent; empty where `check` makes none.
        received: The same for the values in the target's tensors after the write.
        moved: Bytes that left the source's ranks; a block counts once, however many ranks receive it.
    """

    version: int
    changed: tuple[str, ...]
    sent: Mapping[str, str] = field(default_factory=dict, repr=False)
    received: Mapping[str, str] = field(default_factory=dict, repr=False)
    moved: int = 0


def changed_names(plan: TransferPlan, bits: int) -> tuple[str, ...]:
    """Target names of the plan's entries whose bits are set."""
    return tuple(name for i, entry in enumerate(plan.entries) if bits >> i & 1 for name in entry.targets)


def check_replicas(plan: TransferPlan, digests: Sequence[Digests]) -> None:
    """Compare the blocks that several source ranks hold.

    Args:
        plan: The plan.
        digests: One mapping for each source rank.

    Raises:
        ManifestError: If the replicas differ; it names tensors, blocks and ranks.
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
            + "\nmake them equal first (one seed, one checkpoint, or a broadcast from one of them); "
            'check="never" takes each block from any of them'
        )


def check_arrival(plan: TransferPlan, sent: Sequence[Digests], received: Sequence[Digests]) -> None:
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


def by_name(plan: TransferPlan, digests: Sequence[Digests]) -> dict[str, str]:
    """One digest for each target name: the sum over the blocks that moved, each counted once."""
    moves: dict[Move, int] = {}
    for of_rank in digests:
        for move, values in of_rank.items():
            moves[move] = values[0]
    totals = [0] * len(plan.entries)
    for move, value in moves.items():
        totals[move.entry] += value
    return {name: f"{totals[i] & _MASK:016x}" for i, entry in enumerate(plan.entries) for name in sorted(entry.targets)}
