"""Versions that have arrived on a rank and are not written yet: each is a copy that no later transfer changes."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from twinkle_ray.weights.transport.packing import copy_all, is_kept

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from twinkle_ray.weights.planning.sync_plan import RankPlan


@dataclass(frozen=True, slots=True, eq=False)
class HeldVersion:
    """One version.

    Attributes:
        rank_plan: The plan by which it arrived.
        blocks: The arrived blocks of each bucket, by the bucket's index.
    """

    rank_plan: RankPlan
    blocks: Mapping[int, Sequence[Tensor]]


class HeldVersions:
    """The versions of one rank that wait to be written, by attempt.

    Attributes:
        lock: Held while a version is copied here, or written.
    """

    def __init__(self) -> None:
        self.lock = Lock()
        self._held: dict[int, HeldVersion] = {}
        self._free: list[HeldVersion] = []

    def hold(self, attempt: int, rank_plan: RankPlan, arrivals: Mapping[int, Sequence[Tensor]]) -> HeldVersion:
        """Copy what has arrived, into memory of a version that was written where there is one."""
        found = next((one for one in self._free if one.rank_plan.digest == rank_plan.digest), None)
        if found is None:
            self._free.clear()
            empty = {
                index: [torch.empty_like(block, memory_format=torch.contiguous_format) for block in blocks]
                for index, blocks in arrivals.items()
            }
            found = HeldVersion(rank_plan, empty)
        else:
            self._free.remove(found)
        for index, blocks in arrivals.items():
            copy_all(found.blocks[index], blocks)
        self._held[attempt] = found
        return found

    def get(self, attempt: int) -> HeldVersion | None:
        """A version; None if a later one has taken its place."""
        return self._held.get(attempt)

    def drop(self, attempts: Iterable[int]) -> None:
        """Versions that were written, or that will not be; the memory of one is kept for the next, on hosts."""
        for attempt in attempts:
            dropped = self._held.pop(attempt, None)
            if dropped is not None:
                blocks = [block for of_bucket in dropped.blocks.values() for block in of_bucket]
                self._free = [dropped] if all(is_kept(block.device) for block in blocks) else []
