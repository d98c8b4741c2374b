"""Places of several buckets in one piece of memory, such that the blocks of a tensor lie in it as in the tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinkle_ray.weights.planning.buckets import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twinkle_ray.weights.planning.buckets import Bucket


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
