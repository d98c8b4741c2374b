"""The calls that data ranks are given: which chunks go together, and to whom."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinkle_mesh import balanced_slice
from twinkle_remote.streams.schedule.chunk_table import AT_WORK
from twinkle_remote.streams.schedule.decisions import Assignment, StageCall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.streams.schedule.chunk_table import ChunkTable
    from twinkle_remote.streams.schedule.data_ranks import DataRanks
    from twinkle_remote.streams.schedule.delivery.delivery_order import DeliveryOrder
    from twinkle_remote.streams.schedule.intake import Intake
    from twinkle_remote.streams.schedule.setbacks import Setbacks
    from twinkle_remote.streams.schedule.work_queues import WorkQueues


class Calls:
    """Gives the chunks that wait to the data ranks that have room.

    What waits is divided evenly over the data ranks that have the least calls, in the order of the rows. No call has
    more rows than its stage takes at a time. A chunk that has failed, or that was lost twice with its worker, has a
    call of its own, so that it cannot fail others; so have all chunks where their size is given.

    Args:
        chunks: The chunks.
        queues: Where they wait.
        setbacks: Tells which ones are too old.
        delivery: Gets those that begin.
        pools: The data ranks of each pool.
        stages: The pool of each stage, and what it takes at a time.
        of_given_size: Each chunk is a call.

    Attributes:
        at_work: Chunks that data ranks have.
    """

    def __init__(
        self,
        chunks: ChunkTable,
        queues: WorkQueues,
        setbacks: Setbacks,
        delivery: DeliveryOrder,
        pools: Sequence[DataRanks],
        stages: Sequence[tuple[int, Intake]],
        *,
        of_given_size: bool,
    ) -> None:
        self._chunks = chunks
        self._queues = queues
        self._setbacks = setbacks
        self._delivery = delivery
        self._pools = pools
        self._stages = stages
        self._ranks = [pools[pool].count for pool, _ in stages]
        self._of_given_size = of_given_size
        self._left: dict[int, list[int]] = {}  # of a chunk that is not alone: how many of its call are at work
        self.at_work = 0

    def most_rows(self, stage: int, batch: int) -> int:
        """Rows of a call of a stage, at most.

        Args:
            stage: The stage.
            batch: Rows of a batch of the loop.
        """
        return self._stages[stage][1].most_rows(batch, self._ranks[stage])

    def begin(self, stage: int, version: int, batch: int) -> list[StageCall]:
        """Begin what waits for a stage, one call for each of the least busy data ranks at most.

        Args:
            stage: The stage.
            version: The version now.
            batch: Rows of a batch of the loop.
        """
        pool, intake = self._stages[stage]
        ranks = self._pools[pool]
        calls = ranks.least_busy(intake.lane)
        if not calls:
            return []
        groups = self._take(stage, version, calls, self.most_rows(stage, batch))
        return [self._give(group, stage, ranks.take(intake.lane)) for group in groups]

    def _take(self, stage: int, version: int, calls: int, most: int) -> list[list[int]]:
        """The chunks of each call."""
        alone: list[list[int]] = []
        together: list[int] = []

        def fits(chunk: int) -> bool:
            if self._is_alone(chunk):
                return len(alone) + -(-len(together) // most) < calls
            return len(together) < (calls - len(alone)) * most

        while (chunk := self._queues.take(stage, version, fits)) is not None:
            if stage and self._setbacks.is_overtaken(chunk, version):
                continue
            self._begin(chunk, version)
            if self._is_alone(chunk):
                alone.append([chunk])
            else:
                together.append(chunk)
        shares = min(calls - len(alone), len(together))
        return [*alone, *(together[balanced_slice(len(together), shares, share)] for share in range(shares))]

    def _is_alone(self, chunk: int) -> bool:
        chunks = self._chunks
        return self._of_given_size or chunks.errors[chunk] + chunks.late[chunk] > 0 or chunks.losses[chunk] > 1

    def _begin(self, chunk: int, version: int) -> None:
        self.at_work += 1
        self._chunks.state[chunk] = AT_WORK
        if self._chunks.begun[chunk] < 0:
            self._chunks.begun[chunk] = version
            self._delivery.begun(chunk)

    def _give(self, group: Sequence[int], stage: int, rank: int) -> StageCall:
        for chunk in group:
            self._chunks.rank[chunk] = rank
        if len(group) > 1:
            left = [len(group)]
            self._left |= dict.fromkeys(group, left)
        return StageCall(stage, rank, tuple(map(self.assignment, group)))

    def assignment(self, chunk: int) -> Assignment:
        """The work of a chunk that a data rank has."""
        chunks = self._chunks
        stage, rank, begun = chunks.stage[chunk], chunks.rank[chunk], chunks.begun[chunk]
        return Assignment(chunk, stage, rank, chunks.first[chunk], chunks.count[chunk], begun)

    def leave(self, chunk: int) -> None:
        """A chunk is at work no more; its data rank has room again with the last one of its call."""
        self.at_work -= 1
        left = self._left.pop(chunk, None)
        if left is not None:
            left[0] -= 1
            if left[0]:
                return
        pool, intake = self._stages[self._chunks.stage[chunk]]
        self._pools[pool].give_back(self._chunks.rank[chunk], intake.lane)
