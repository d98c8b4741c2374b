"""Buckets: the blocks of a transfer laid out in contiguous, aligned memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twinkle_ray.weights.planning.transfer_plan import Distance, Transfer, TransferPlan
    from twinkle_ray.weights.shards.box import Box

ALIGNMENT = 256
SOLO_BYTES = 1 << 20


class Slot(NamedTuple):
    """One block in a bucket; `offset` is in bytes, a multiple of 256, so that a view of any dtype can start there."""

    entry: int
    box: Box
    wire: str
    offset: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """Blocks that travel together, from one source rank to one set of target ranks."""

    index: int
    source: int
    targets: tuple[int, ...]
    distance: Distance
    slots: tuple[Slot, ...]
    nbytes: int


def make_buckets(plan: TransferPlan, bucket_bytes: int) -> tuple[Bucket, ...]:
    """Lay out every transfer of a plan in buckets of at most `bucket_bytes`.

    A block of 1 MiB or more has its own bucket: if it is contiguous at the source, it is sent without a copy.
    """
    buckets: list[Bucket] = []
    for transfer in plan.transfers:
        for slots, nbytes in _packed(plan, transfer, bucket_bytes):
            where = (transfer.source, transfer.targets, transfer.distance)
            buckets.append(Bucket(len(buckets), *where, slots, nbytes))
    return tuple(buckets)


def _packed(plan: TransferPlan, transfer: Transfer, bucket_bytes: int) -> Iterator[tuple[tuple[Slot, ...], int]]:
    slots: list[Slot] = []
    end = 0
    entries = plan.entries
    for entry, (boxes, sizes) in zip(transfer.entries, transfer.blocks, strict=True):
        wire = entries[entry].wire
        for box, size in zip(boxes, sizes, strict=True):
            if size >= SOLO_BYTES:
                yield (Slot(entry, box, wire, 0),), size
                continue
            offset = -(-end // ALIGNMENT) * ALIGNMENT
            if offset + size > bucket_bytes:
                yield tuple(slots), end
                slots, offset = [], 0
            slots.append(Slot(entry, box, wire, offset))
            end = offset + size
    if slots:
        yield tuple(slots), end
