"""Buckets: the blocks of a parcel laid out in contiguous, aligned memory, and the copies in and out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from twinkle_ray.weights.planning.manifest import item_size, torch_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from twinkle_ray.weights.planning.transfer_plan import Distance, Parcel, Plan
    from twinkle_ray.weights.shards.box import Box

ALIGNMENT = 256
SOLO_BYTES = 1 << 20


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
    """Lay out every parcel of a plan in buckets of at most `bucket_bytes`.

    Blocks of 1 MiB and more have buckets of their own: one that is contiguous at the source leaves from its own memory.
    """
    buckets: list[Bucket] = []
    for parcel in plan.parcels:
        for slots, nbytes in _packed(plan, parcel, bucket_bytes):
            where = (parcel.source, parcel.targets, parcel.distance)
            buckets.append(Bucket(len(buckets), *where, slots, nbytes))
    return tuple(buckets)


def _packed(plan: Plan, parcel: Parcel, bucket_bytes: int) -> Iterator[tuple[tuple[Slot, ...], int]]:
    slots: list[Slot] = []
    end = 0
    for move in parcel.moves:
        wire, size = plan.entries[move.entry].wire, plan.nbytes(move)
        if size >= SOLO_BYTES:
            yield (Slot(move.entry, move.box, wire, 0),), size
            continue
        offset = -(-end // ALIGNMENT) * ALIGNMENT
        if offset + size > bucket_bytes:
            yield tuple(slots), end
            slots, offset = [], 0
        slots.append(Slot(move.entry, move.box, wire, offset))
        end = offset + size
    if slots:
        yield tuple(slots), end


def slot_views(bucket: Bucket, buffer: Tensor) -> list[Tensor]:
    """Each slot of a bucket as a typed view of its bytes."""
    views: list[Tensor] = []
    for slot in bucket.slots:
        size = slot.box.volume * item_size(slot.wire)
        views.append(buffer[slot.offset : slot.offset + size].view(torch_dtype(slot.wire)).view(slot.box.shape))
    return views


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy block by block, converting where the dtypes differ; equal dtypes keep their bits."""
    if targets:
        with torch.no_grad():
            torch._foreach_copy_([*map(_bits, targets, sources)], [*map(_bits, sources, targets)])


def _bits(tensor: Tensor, other: Tensor) -> Tensor:
    """One-byte dtypes as plain bytes, where nothing is converted: float8 has no copy of its own on every device."""
    if tensor.itemsize == 1 and tensor.dtype == other.dtype and tensor.dtype != torch.uint8:
        return tensor.view(torch.uint8)
    return tensor


def empty_bytes(nbytes: int, device: torch.device) -> Tensor:
    """Uninitialised bytes."""
    return torch.empty(nbytes, dtype=torch.uint8, device=device)
