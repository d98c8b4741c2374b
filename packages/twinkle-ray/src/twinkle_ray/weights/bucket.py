"""Buckets: the blocks of a parcel laid out in contiguous, aligned memory, and the copies in and out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from twinkle_ray.weights.manifest import item_size, torch_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_ray.weights.box import Box
    from twinkle_ray.weights.plan import Distance, Plan

ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class Slot:
    """One block in a bucket: `offset` is in bytes, a multiple of 256 so that every dtype may be viewed there."""

    entry: int
    box: Box
    wire: str
    offset: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """What travels at once, from one source rank to one set of target ranks."""

    index: int
    source: int
    targets: tuple[int, ...]
    distance: Distance
    slots: tuple[Slot, ...]
    nbytes: int


def make_buckets(plan: Plan, bucket_bytes: int) -> tuple[Bucket, ...]:
    """Lay out every parcel of a plan in buckets of at most `bucket_bytes`, in the plan's order.

    A bucket of one block has no padding, so that a block which is contiguous at the source may leave from its own
    memory.
    """
    buckets: list[Bucket] = []
    for parcel in plan.parcels:
        slots: list[Slot] = []
        end = 0
        for move in parcel.moves:
            wire = plan.entries[move.entry].wire
            offset = -(-end // ALIGNMENT) * ALIGNMENT
            size = move.box.volume * item_size(wire)
            if slots and offset + size > bucket_bytes:
                buckets.append(Bucket(len(buckets), parcel.source, parcel.targets, parcel.distance, tuple(slots), end))
                slots, offset = [], 0
            slots.append(Slot(move.entry, move.box, wire, offset))
            end = offset + size
        buckets.append(Bucket(len(buckets), parcel.source, parcel.targets, parcel.distance, tuple(slots), end))
    return tuple(buckets)


def slot_views(bucket: Bucket, buffer: Tensor) -> list[Tensor]:
    """Each slot of a bucket as a typed view of its bytes."""
    views: list[Tensor] = []
    for slot in bucket.slots:
        size = slot.box.volume * item_size(slot.wire)
        views.append(buffer[slot.offset : slot.offset + size].view(torch_dtype(slot.wire)).view(slot.box.shape))
    return views


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy block by block, converting where the dtypes differ; bytes are kept as they are where they do not."""
    plain: tuple[list[Tensor], list[Tensor]] = ([], [])
    with torch.no_grad():
        for target, source in zip(targets, sources, strict=True):
            if target.dtype == source.dtype and target.itemsize == 1:
                target, source = target.view(torch.uint8), source.view(torch.uint8)
            plain[0].append(target)
            plain[1].append(source)
        if plain[0]:
            torch._foreach_copy_(plain[0], plain[1])


def empty_bytes(nbytes: int, device: torch.device) -> Tensor:
    """Uninitialised bytes."""
    return torch.empty(nbytes, dtype=torch.uint8, device=device)
