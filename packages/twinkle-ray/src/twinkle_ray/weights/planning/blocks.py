"""The blocks that move: where what a target needs meets what the source holds, cut to the size of a bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from twinkle_ray.weights.errors import ManifestError
from twinkle_ray.weights.planning.disjoint import BoxSearch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from twinkle_ray.weights.planning.manifest import TensorMatch
    from twinkle_ray.weights.shards.box import Box

MIN_SLAB_BYTES = 1 << 20


class Block(NamedTuple):
    """A block that moves: its owners at the source, the target ranks that need it, and its bytes in transit."""

    box: Box
    owners: tuple[int, ...]
    targets: tuple[int, ...]
    nbytes: int


def needed_blocks(
    entry: TensorMatch, held: Mapping[Box, Sequence[int]], wanted: Sequence[Mapping[Box, Sequence[int]]], item: int
) -> list[Block]:
    """The blocks of one entry that move.

    Args:
        entry: The tensor.
        held: Disjoint blocks, with the source ranks that hold each.
        wanted: For each of the entry's target names, its blocks with the target ranks that hold each.
        item: Bytes of one element in transit.

    Raises:
        ManifestError: If no source rank holds a block that a target needs.
    """
    receivers: dict[Box, set[int]] = {}
    for boxes in wanted:
        for box, ranks in boxes.items():
            receivers.setdefault(box, set()).update(ranks)
    search = BoxSearch(held)
    found: list[Block] = []
    for need in sorted(receivers):
        targets = tuple(sorted(receivers[need]))
        rest = [need]
        for box in search.around(need):
            left: list[Box] = []
            for part in rest:
                common = part.intersect(box)
                if common is None:
                    left.append(part)
                    continue
                found.append(Block(common, tuple(held[box]), targets, common.volume * item))
                if common != part:
                    left.extend(part.minus(box))
            rest = left
            if not rest:
                break
        if rest:
            raise ManifestError(
                f"no rank of the source holds {rest[0]} of {entry.source!r} (shape {entry.shape}), "
                f"which rank {targets[0]} of the target needs: its shards leave a hole"
            )
    return found


def cut_blocks(
    layouts: Sequence[Sequence[Block]], counts: Sequence[int], items: Sequence[int], bucket_bytes: int
) -> list[list[Block]]:
    """Cut blocks to the size of a bucket, and smaller if a few large ones would leave replicas idle.

    Args:
        layouts: For each layout its blocks.
        counts: How many entries have each layout.
        items: Bytes of one element in transit, for each layout.
        bucket_bytes: Most bytes of a block.
    """
    totals: dict[tuple[int, ...], int] = {}
    for blocks, count in zip(layouts, counts, strict=True):
        for block in blocks:
            totals[block.owners] = totals.get(block.owners, 0) + block.nbytes * count

    def parts(block: Block, item: int) -> Iterator[Block]:
        owners = block.owners
        share = totals[owners] // (8 * len(owners)) if len(owners) > 1 else bucket_bytes
        limit = max(MIN_SLAB_BYTES, min(bucket_bytes, share))
        if block.nbytes <= limit:
            yield block
            return
        for box in block.box.slabs(limit // item):
            yield Block(box, owners, block.targets, box.volume * item)

    return [
        [part for block in blocks for part in parts(block, item)] for blocks, item in zip(layouts, items, strict=True)
    ]
