"""The proof of a sync: hashes of blocks at both ends, replicas that agree, and whether anything has changed."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, TypeAlias

import torch

from twinkle_ray.weights.errors import ManifestError, WeightSyncError
from twinkle_ray.weights.transport.packing import in_a_row

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from twinkle_ray.weights.plan import Move, SyncPlan

Hashes: TypeAlias = "Mapping[Move, int]"
_SHOWN = 8
_SAMPLED = 16  # blocks, of which some elements each are looked at
_ELEMENTS = 64


def block_hash(block: Tensor) -> int:
    """CRC-32 of a block's bytes, in the order of its elements."""
    return zlib.crc32(in_a_row(block).view(torch.uint8).cpu().numpy().data)


def check_metadata(
    source: str,
    target: str,
    sent: Sequence[tuple[tuple[str, str], ...]],
    written: Sequence[tuple[tuple[str, str], ...]],
) -> None:
    """Compare what the weights of both sides stand on, by rank.

    Raises:
        ManifestError: They stand on something else: the same names and shapes would be another model there.
    """
    known = {name: value for metadata in sent for name, value in metadata}
    for rank, metadata in enumerate(written):
        for name, value in metadata:
            if known.get(name, value) != value:
                raise ManifestError(
                    f"{source} and {target} hold weights of the same names, but {name} is {known[name]} at the source "
                    f"and {value} at the target (rank {rank}): build both from the same model, with the same lora="
                )


def check_replicas(plan: SyncPlan, hashes: Sequence[Hashes], source: str) -> None:
    """Compare the blocks that several source ranks hold.

    Args:
        plan: The plan.
        hashes: One mapping for each source rank.
        source: Name of the source's component.

    Raises:
        ManifestError: If the replicas differ; it names the component, tensors, blocks and ranks.
    """
    faults: dict[int, str] = {}
    for move, owners in plan.replicas:
        groups: dict[int, list[int]] = {}
        for rank in owners:
            groups.setdefault(hashes[rank][move], []).append(rank)
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
            'one of them); check="never" takes each block from any of them'
        )


def check_arrival(arrived: Hashes, expected: Hashes, name_of: Callable[[int], str], rank: int) -> None:
    """Compare the blocks that have arrived at a rank with those that the source has staged.

    Raises:
        WeightSyncError: If they differ; it names tensors and the rank.
    """
    wrong = dict.fromkeys(name_of(move.entry) for move, value in arrived.items() if value != expected[move])
    if wrong:
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise WeightSyncError(
            f"other values have arrived at the target than the source has: {', '.join(list(wrong)[:_SHOWN])}{more} on "
            f"rank {rank}. Were weights of the source changed during the sync?"
        )


class Changes:
    """Whether the blocks of a source rank are those of its last version, bit for bit.

    A sample of each version is looked at. Only where it is the same, all bytes are.
    """

    def __init__(self) -> None:
        self._sample: bytes | None = None
        self._hashes: Sequence[int] | None = None

    def same(self, blocks: Sequence[Tensor], hashes: Sequence[int] | None = None) -> bool:
        """Take a version; returns whether it is known to be equal to the last one.

        Args:
            blocks: Its blocks.
            hashes: Of all blocks, where they are known.
        """
        sample = b"".join(map(_sample, blocks[:: max(1, len(blocks) // _SAMPLED)]))
        before, self._sample = self._sample, sample
        if before != sample:
            self._hashes = hashes
            return False
        known, self._hashes = self._hashes, hashes or [block_hash(block) for block in blocks]
        return known == self._hashes


def _sample(block: Tensor) -> bytes:
    """Some elements of a block, spread over it."""
    if not block.numel():
        return b""
    row = block.detach()
    while row.ndim > 1:
        row = row[row.shape[0] // 2]
    row = row.reshape(-1)
    picked = row[:: max(1, row.numel() // _ELEMENTS)].clone()
    return bytes(in_a_row(picked).view(torch.uint8).cpu().numpy().data)
