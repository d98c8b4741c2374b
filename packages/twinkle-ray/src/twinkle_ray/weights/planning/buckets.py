"""Buckets: the blocks of a transfer laid out in contiguous, aligned memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from twinkle_ray.weights.planning.box_plan import BoxPlan, Distance, SizedBox, Transfer
    from twinkle_ray.weights.shards.box import Box

ALIGNMENT = 256
SOLO_BYTES = 1 << 20


class Slot(NamedTuple):
    """One block in a bucket; `offset` is in bytes, a multiple of 256, so that a view of any dtype can start there."""

    entry: int
    box: Box
    wire: str
    offset: int


@dataclass(slots=True)  # not frozen: a large plan has a hundred thousand, and a frozen one takes three times as long
class Bucket:
    """Blocks that travel together, from one source rank to one set of target ranks; nobody changes it.

    Attributes:
        index: Place among the plan's buckets.
        source: Source rank.
        targets: Target ranks.
        distance: Whether both ends share a process, only a host, or neither.
        entries: The entry of each block.
        wires: For each block, its dtype in transit.
        pieces: The blocks; entries that are alike share them.
        nbytes: Bytes, with the gaps between the blocks.
    """

    index: int
    source: int
    targets: tuple[int, ...]
    distance: Distance
    entries: tuple[int, ...]
    wires: tuple[str, ...]
    pieces: tuple[SizedBox, ...]
    nbytes: int

    @property
    def slots(self) -> Sequence[Slot]:
        """The blocks with their places; made when a rank asks, for a large plan has a million of them."""
        found: list[Slot] = []
        end = 0
        for entry, wire, (box, size) in zip(self.entries, self.wires, self.pieces, strict=True):
            offset = -(-end // ALIGNMENT) * ALIGNMENT
            found.append(Slot(entry, box, wire, offset))
            end = offset + size
        return found


def make_buckets(plan: BoxPlan, bucket_bytes: int) -> tuple[Bucket, ...]:
    """Lay out every transfer of a plan in buckets of at most `bucket_bytes`.

    A block of 1 MiB or more has its own bucket: if it is contiguous at the source, it is sent without a copy. So has a
    smaller one that continues it: the rest of a tensor that was cut.
    """
    wires = [entry.wire for entry in plan.entries]
    buckets: list[Bucket] = []
    for transfer in plan.transfers:
        where = transfer.source, transfer.targets, transfer.distance
        for entries, pieces, nbytes in _packed(transfer, bucket_bytes):
            its_wires = (wires[entries[0]],) if len(entries) == 1 else tuple([wires[entry] for entry in entries])
            buckets.append(Bucket(len(buckets), *where, entries, its_wires, pieces, nbytes))
    return tuple(buckets)


def _packed(transfer: Transfer, bucket_bytes: int) -> Iterator[tuple[tuple[int, ...], tuple[SizedBox, ...], int]]:
    """The entries, the blocks and the bytes of each bucket."""
    entries: list[int] = []
    pieces: list[SizedBox] = []
    end = 0
    cut: tuple[int, Box] | None = None
    for entry, piece in zip(transfer.entries, transfer.pieces, strict=True):
        size = piece[1]
        if size >= SOLO_BYTES or (cut is not None and cut[0] == entry and _continues(cut[1], piece.box)):
            yield (entry,), (piece,), size
            cut = (entry, piece.box) if size >= SOLO_BYTES else None
            continue
        cut = None
        offset = -(-end // ALIGNMENT) * ALIGNMENT
        if offset + size > bucket_bytes:
            yield tuple(entries), tuple(pieces), end
            entries, pieces, offset = [], [], 0
        entries.append(entry)
        pieces.append(piece)
        end = offset + size
    if entries:
        yield tuple(entries), tuple(pieces), end


def _continues(box: Box, other: Box) -> bool:
    """Whether `other` begins where `box` ends, in one dimension, and is as wide in all later ones."""
    for dim, (start, end) in enumerate(zip(other.offset, box.stop, strict=True)):
        if start != box.offset[dim]:
            later = slice(dim + 1, None)
            return start == end and (other.offset[later], other.shape[later]) == (box.offset[later], box.shape[later])
    return False


def bucket_offsets(buckets: Iterable[Bucket]) -> tuple[dict[int, int], int]:
    """The offset of each bucket in bytes, by its index, and the size of the memory.

    Buckets of one block come first, by tensor and place in it. One that continues the tensor of the bucket before it
    follows without a gap, so that whole rows of a tensor that was cut are contiguous again; others start at a multiple
    of 256.
    """
    single: list[Bucket] = []
    packed: list[Bucket] = []
    for bucket in buckets:
        (single if len(bucket.entries) == 1 else packed).append(bucket)
    single.sort(key=lambda bucket: (bucket.entries[0], bucket.pieces[0].box))
    offsets: dict[int, int] = {}
    end, entry = 0, -1
    for bucket in (*single, *packed):
        following = len(bucket.entries) == 1 and bucket.entries[0] == entry
        offsets[bucket.index] = start = end if following else -(-end // ALIGNMENT) * ALIGNMENT
        end, entry = start + bucket.nbytes, bucket.entries[-1]
    return offsets, end
