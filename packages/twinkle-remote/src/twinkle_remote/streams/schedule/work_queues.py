"""The chunks that wait for a stage, and which of them may be begun."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from twinkle_remote.streams.schedule.chunk_table import WAITING
from twinkle_remote.streams.schedule.delivery.delivery_order import chunk_of, sort_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinkle_remote.streams.schedule.chunk_table import ChunkTable
    from twinkle_remote.streams.schedule.delivery.delivery_order import DeliveryOrder
    from twinkle_remote.streams.schedule.delivery.overtaken import OvertakenChunks
    from twinkle_remote.streams.schedule.lag import LagRule


class WorkQueues:
    """Gives the waiting chunks of each stage in the order of their rows.

    Rows that were begun go on always. Under a hard bound of lag a row is begun only if all rows that are begun can be
    delivered in time; one that was overtaken is begun when the loop waits for the batch that will hold it. So no row is
    overtaken twice, whatever the loop publishes while it uses a batch.

    Args:
        chunks: The chunks.
        stages: Number of stages.
        lag: The rule of lag.
        delivery: What chooses the rows of batches.
        overtaken: The chunks that wait to be made again because they were too old.
    """

    def __init__(
        self, chunks: ChunkTable, stages: int, lag: LagRule, delivery: DeliveryOrder, overtaken: OvertakenChunks
    ) -> None:
        self._chunks = chunks
        self._queues: list[list[int]] = [[] for _ in range(stages)]
        self._lag = lag
        self._delivery = delivery
        self._overtaken = overtaken

    def put(self, chunk: int) -> None:
        """A chunk waits for its stage."""
        chunks = self._chunks
        chunks.state[chunk] = WAITING
        if chunks.stage[chunk] == 0 and chunks.overtaken[chunk] and self._lag.holds(chunks.overtaken[chunk]):
            self._overtaken.add(chunk)
        else:
            heappush(self._queues[chunks.stage[chunk]], sort_key(tick=chunks.first[chunk], chunk=chunk))

    def can_begin(self, version: int) -> bool:
        """Whether a chunk waits that may be begun."""
        return any(self._queues[1:]) or self._first(version) is not None

    def take(self, stage: int, version: int, fits: Callable[[int], bool]) -> int | None:
        """The next chunk that may be begun, which waits no more; None without one.

        Of a chunk that may be begun in part, the rest waits on.

        Args:
            stage: The stage.
            version: The version now.
            fits: Whether a chunk has a place; the next one that has none waits on, with all behind it.
        """
        queue = self._queues[stage]
        if stage or not self._lag.bounds:
            return chunk_of(heappop(queue)) if queue and fits(chunk_of(queue[0])) else None
        found = self._first(version)
        if found is None or not fits(found[0]):
            return None
        chunk, rows = found
        if self._overtaken.has(chunk):
            self._overtaken.remove(chunk)
        elif chunk_of(queue[0]) == chunk:
            heappop(queue)
        else:
            queue.remove(sort_key(tick=self._chunks.first[chunk], chunk=chunk))
            queue.sort()
        if rows < self._chunks.count[chunk]:
            self.put(self._chunks.split_at(chunk, rows))
        return chunk

    def _first(self, version: int) -> tuple[int, int] | None:
        """The next chunk of the first stage that may be begun, and how many of its rows may."""
        queue, one_by_one = self._queues[0], not self._delivery.is_by_batch
        first = self._overtaken.first()
        for chunk in [] if first is None else [first] if one_by_one else self._overtaken.in_order():
            if rows := self._room_again(chunk, version):
                return chunk, rows
        if queue and not self._lag.is_hard:
            return chunk_of(queue[0]), self._chunks.count[chunk_of(queue[0])]
        batches = self._lag.versions.batches_of_new_rows() if queue else 0
        for chunk in map(chunk_of, queue[:1] if one_by_one else sorted(queue)):
            if rows := self._delivery.room(chunk, batches, version):
                return chunk, rows
        return None

    def _room_again(self, chunk: int, version: int) -> int:
        if self._lag.is_hard:
            return self._delivery.room_again(chunk, version) if self._lag.versions.is_asked else 0
        return self._chunks.count[chunk] if self._lag.versions.batches_of_new_rows() else 0
