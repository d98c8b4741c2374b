"""Batches of a fixed number of rows, in the order in which rows are finished."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from twinkle_remote.streams.schedule.chunk_table import FINISHED
from twinkle_remote.streams.schedule.delivery_order import chunk_of, is_current, sort_key

if TYPE_CHECKING:
    from twinkle_remote.streams.schedule.chunk_table import ChunkTable
    from twinkle_remote.streams.schedule.lag import LagRule


class ArrivalOrder:
    """Takes finished rows: held ones first, then by the version of their begin, then by arrival.

    Args:
        chunks: The chunks.
        rows: Rows of a batch.
        lag: The rule of lag; without a bound, arrival alone counts.
    """

    def __init__(self, chunks: ChunkTable, rows: int, lag: LagRule) -> None:
        self._chunks = chunks
        self._rows = rows
        self._lag = lag
        self._heap: list[int] = []
        self._finished = 0
        self._held: dict[int, list[int]] = {}

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
            key = sort_key(last, chunks.begun[chunk], tick=chunks.tick[chunk], chunk=chunk)
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
        ages = ((begun, there, done) for begun, (there, done) in self._held.items())
        return self._lag.in_time(ages, version, self._rows)

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
        begun = self._chunks.begun[chunk]
        counts = self._held.setdefault(begun, [0, 0])
        counts[0] += there
        counts[1] += finished
        if counts[0] == 0:
            del self._held[begun]
