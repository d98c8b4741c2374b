"""The result of a sync: its version, the tensors that changed, and digests of the values at both ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_ray.weights.planning.box_plan import BoxPlan, Digests, Move

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


def changed_names(plan: BoxPlan, bits: int) -> tuple[str, ...]:
    """Target names of the plan's entries whose bits are set."""
    return tuple(name for i, entry in enumerate(plan.entries) if bits >> i & 1 for name in entry.targets)


def by_name(plan: BoxPlan, digests: Sequence[Digests]) -> dict[str, str]:
    """One digest for each target name: the sum over the blocks that moved, each counted once."""
    moves: dict[Move, int] = {}
    for of_rank in digests:
        for move, values in of_rank.items():
            moves[move] = values[0]
    totals = [0] * len(plan.entries)
    for move, value in moves.items():
        totals[move.entry] += value
    return {name: f"{totals[i] & _MASK:016x}" for i, entry in enumerate(plan.entries) for name in sorted(entry.targets)}
