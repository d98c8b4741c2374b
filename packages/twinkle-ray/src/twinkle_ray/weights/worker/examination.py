"""The search in the values of a source before any of them moves."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import torch

from twinkle_ray.weights.planning.manifest import torch_dtype
from twinkle_ray.weights.worker.commit import as_integers

if TYPE_CHECKING:
    from torch import Tensor

    from twinkle_ray.weights.planning.box_plan import Digests
    from twinkle_ray.weights.planning.sync_plan import RankPlan
    from twinkle_ray.weights.shards.box import Box
    from twinkle_ray.weights.shards.specs import LocalShards


_PACKED = getattr(torch, "float4_e2m1fn_x2", None)  # knows neither NaN nor infinity; not in every torch


@dataclass(frozen=True, slots=True)
class Examined:
    """The findings of one source rank in its values.

    Attributes:
        digests: Of every block that it sends, or holds a replica of.
        not_finite: Source names of tensors with values that are NaN or infinite, as the target would get them.
        apart: Source names, and boxes, whose values differ between two blocks of this rank.
    """

    digests: Digests
    not_finite: tuple[str, ...]
    apart: tuple[tuple[str, Box], ...]


def not_finite(local_shards: LocalShards, rank_plan: RankPlan) -> tuple[str, ...]:
    """Source names of tensors that this rank sends with values that are not finite, in the plan's order."""
    found: dict[str, None] = {}
    for bucket in rank_plan.buckets.values():
        for slot in bucket.slots:
            entry = rank_plan.entries[slot.entry]
            if entry.source in local_shards.pieces and entry.source not in found:
                block = local_shards.view(entry.source, slot.box)
                if not is_finite(block.to(torch_dtype(entry.wire)).to(torch_dtype(entry.dtype))):
                    found[entry.source] = None
    return tuple(found)


def is_finite(block: Tensor) -> bool:
    """Whether no element is NaN or infinite; integers always are finite."""
    if block.is_complex():
        block = torch.view_as_real(block)
    if not block.is_floating_point() or not block.numel() or block.dtype is _PACKED:
        return True
    if block.itemsize == 1:  # the short types have few operations of their own
        block = block.to(torch.bfloat16)
    return bool(torch.isfinite(torch.stack(block.detach().aminmax())).all())


def blocks_apart(local_shards: LocalShards, names: set[str]) -> tuple[tuple[str, Box], ...]:
    """The boxes that two blocks of this rank hold with different values, with their tensors' names.

    Args:
        local_shards: The blocks of the rank.
        names: The tensors to look at.
    """
    found: list[tuple[str, Box]] = []
    for name in sorted(names & local_shards.pieces.keys()):
        for (one, first), (other, second) in combinations(local_shards.pieces[name], 2):
            both = one.intersect(other)
            if both is not None and not torch.equal(
                as_integers(first[both.inside(one)].contiguous()), as_integers(second[both.inside(other)].contiguous())
            ):
                found.append((name, both))
    return tuple(found)
