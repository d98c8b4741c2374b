"""Batches of a fixed number of rows, in the order in which rows are finished."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from twinkle_remote.streams.schedule.chunk_table import FINISHED
from twinkle_remote.streams.schedule.delivery.delivery_order import chunk_of, is_current, sort_key

if TYPE_CHECKING:
    from twinkle_remote.streams.schedule.chunk_table import ChunkTable
    from twinkle_remote.streams.schedule.delivery.overtaken import OvertakenChunks
    from twinkle_remote.streams.schedule.lag import LagRule


class ArrivalOrder:
    """Takes finished rows: held ones first, then by the version at which they are due, then by arrival.

    Args:
        chunks: The chunks.
        rows: Rows of a batch.
        lag: The rule of lag; without a bound, arrival alone counts.
        overtaken: The chunks that wait to be made again because they were too old.
    """

    is_by_batch = False

    def __init__(self, chunks: ChunkTable, rows: int, lag: LagRule, overtaken: OvertakenChunks) -> None:
        self._chunks = chunks
        self._rows = rows
        self._lag = lag
        self._overtaken = overtaken
        self._heap: list[int] = []
        self._finished = 0
        self._held: dict[int, list[int]] = {}
        self._begun = 0  # held rows

    def opened(self, batch: int, first: int, count: int) -> None:
        """Batches of the source have no meaning here."""

    def gone(self, first: int, count: int, batch: int) -> None:
        """Rows that will never be delivered hold nothing up."""

    def begun(self, chunk: int) -> None:
        """A chunk's first stage began."""
        self._count_held(chunk, self._chunks.count[chunk], 0)

    def finished(self, chunk: int) -> None:
        """A chunk's last stage is done."""
        chunks = self._chunks
        count = chunks.count[chunk]
        self._finished += count
        self._count_held(chunk, 0, count)
        if self._lag.max_lag is None:
            key = sort_key(tick=chunks.tick[chunk], chunk=chunk)
        else:
            last = not self._lag.holds(chunks.overtaken[chunk])
            due = self._lag.due(chunks.begun[chunk], chunks.overtaken[chunk])
            key = sort_key(last, due, tick=chunks.tick[chunk], chunk=chunk)
        heappush(self._heap, key)

    def withdrawn(self, chunk: int) -> None:
        """A begun chunk starts again or is given up."""
        count = self._chunks.count[chunk]
        done = count if self._chunks.state[chunk] == FINISHED else 0
        self._finished -= done
        self._count_held(chunk, -count, -done)

    def ready(self, version: int, left: int, at_end: bool) -> bool:
        """Whether enough rows are finished, and no held row would be overtaken."""
        if at_end and left <= self._rows:
            return 0 < left == self._finished
        if self._finished < self._rows:
            return False
        return self._lag.in_time(self._dues(), version, self._rows)

    def room(self, chunk: int, batches: int, version: int) -> int:
        """Rows that fit into so many batches in addition to all that are begun, or wait to be made again."""
        room = batches * self._rows - self._begun - self._overtaken.rows
        return max(0, min(self._chunks.count[chunk], room))

    def room_again(self, chunk: int, version: int) -> int:
        """Rows that the next batch can hold besides those that are due."""
        return min(self._chunks.count[chunk], self._lag.room_in_this_batch(self._dues(), version, self._rows))

    def open_batches(self) -> int:
        """Batches of the source have no meaning here."""
        return 0

    def take(self) -> list[tuple[int, int]]:
        """The chunks of the batch; the last one may be cut."""
        chosen: list[tuple[int, int]] = []
        wanted = min(self._rows, self._finished)
        while wanted:
            if not is_current(self._heap[0], self._chunks):
                heappop(self._heap)
                continue
            chunk = chunk_of(self._heap[0])
            rows = min(wanted, self._chunks.count[chunk])
            chosen.append((chunk, rows))
            wanted -= rows
            self._finished -= rows
            self._count_held(chunk, -rows, -rows)
            if rows == self._chunks.count[chunk]:
                heappop(self._heap)
        return chosen

    def _count_held(self, chunk: int, there: int, finished: int) -> None:
        if not self._lag.holds(self._chunks.overtaken[chunk]):
            return
        self._begun += there
        due = self._lag.due(self._chunks.begun[chunk], self._chunks.overtaken[chunk])
        counts = self._held.setdefault(due, [0, 0])
        counts[0] += there
        counts[1] += finished
        if counts[0] == 0:
            del self._held[due]

    def _dues(self) -> list[tuple[int, int, int]]:
        return [(due, there, done) for due, (there, done) in self._held.items()]
