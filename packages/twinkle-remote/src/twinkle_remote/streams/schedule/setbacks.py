"""The treatment of chunks that fail, are lost with their worker, or are too old."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from twinkle_remote.streams.schedule.delivery.delivery_order import chunk_of, is_current, leading, sort_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.streams.schedule.admission import Admission
    from twinkle_remote.streams.schedule.chunk_table import ChunkTable
    from twinkle_remote.streams.schedule.counts import StreamCounts
    from twinkle_remote.streams.schedule.delivery.delivery_order import DeliveryOrder
    from twinkle_remote.streams.schedule.lag import LagRule
    from twinkle_remote.streams.schedule.work_queues import WorkQueues


class Setbacks:
    """Makes chunks again, or gives them up; no data rank has them.

    Args:
        chunks: The chunks.
        lag: The rule of lag.
        delivery: What chooses the rows of batches.
        queues: Where chunks wait for a stage.
        admission: What counts admitted rows.
        counts: What is counted of rows.

    Attributes:
        given_up: First row and number of the rows that were dropped or set aside; the caller takes them off.
    """

    def __init__(
        self,
        chunks: ChunkTable,
        lag: LagRule,
        delivery: DeliveryOrder,
        queues: WorkQueues,
        admission: Admission,
        counts: StreamCounts,
    ) -> None:
        self._chunks = chunks
        self._lag = lag
        self._delivery = delivery
        self._queues = queues
        self._admission = admission
        self._counts = counts
        self._ages: list[int] = []  # finished chunks by the version of their begin
        self.given_up: list[tuple[int, int]] = []

    def again(self, chunk: int, stage: int) -> Sequence[int]:
        """Queue a chunk once more; rows that failed together are made apart, so that one cannot fail the others."""
        chunks = self._chunks
        self._delivery.withdrawn(chunk)
        if stage == 0:
            chunks.begun[chunk] = -1
        chunks.stage[chunk], chunks.cut[chunk] = stage, 0
        parts = chunks.split(chunk)
        for part in parts:
            if stage:
                self._delivery.begun(part)
            self._queues.put(part)
        return parts

    def set_aside(self, chunk: int) -> None:
        """A stage raised for a chunk at each attempt."""
        self._counts.set_aside += self._chunks.count[chunk]
        self._give_up(chunk)

    def watch(self, chunk: int) -> None:
        """A chunk is finished: from now on a version can overtake it."""
        chunks = self._chunks
        if self._lag.bounds and self._lag.stale != "use":
            heappush(self._ages, sort_key(chunks.begun[chunk], tick=chunks.tick[chunk], chunk=chunk))

    def overtake(self, version: int) -> None:
        """Apply the rule of lag to the finished chunks that a version overtakes."""
        while self._ages and self._lag.fate(leading(self._ages[0]), version, 0) != "use":
            key = heappop(self._ages)
            if is_current(key, self._chunks):
                self.is_overtaken(chunk_of(key), version)

    def is_overtaken(self, chunk: int, version: int) -> bool:
        """Apply the rule of lag to a chunk; True if it was dropped or queued again."""
        chunks, counts = self._chunks, self._counts
        fate = self._lag.fate(chunks.begun[chunk], version, chunks.overtaken[chunk])
        if fate == "use":
            return False
        if fate == "drop":
            counts.dropped += chunks.count[chunk]
            self._give_up(chunk)
            return True
        counts.redone += chunks.count[chunk]
        self._delivery.withdrawn(chunk)
        chunks.overtaken[chunk] = min(chunks.overtaken[chunk] + 1, 100)
        chunks.begun[chunk] = chunks.ended[chunk] = -1
        chunks.stage[chunk] = chunks.cut[chunk] = 0
        self._queues.put(chunk)
        return True

    def _give_up(self, chunk: int) -> None:
        chunks = self._chunks
        if chunks.begun[chunk] >= 0:
            self._delivery.withdrawn(chunk)
        self._admission.unused -= chunks.count[chunk]
        self.given_up.append((chunks.first[chunk], chunks.count[chunk]))
        self._delivery.gone(chunks.first[chunk], chunks.count[chunk], chunks.batch[chunk])
        chunks.remove(chunk)
