"""Batches in the order of the source: of a fixed number of rows, or the source's own batches."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING

from twinkle_remote.streams.schedule.chunk_table import FINISHED
from twinkle_remote.streams.schedule.delivery.delivery_order import chunk_of, is_current, sort_key

if TYPE_CHECKING:
    from twinkle_remote.streams.schedule.chunk_table import ChunkTable


class SourceOrder:
    """Delivers rows strictly in the order of the source, so a row's place says in which batch it will be.

    Args:
        chunks: The chunks.
        rows: Rows of a batch; None for the source's own batches.
        first: Position of the first row.
    """

    is_by_batch = False

    def __init__(self, chunks: ChunkTable, rows: int | None, first: int = 0) -> None:
        self._chunks = chunks
        self._rows = rows
        self._next = first  # all rows before it are in line, delivered or gone
        self._heap: list[int] = []
        self._gone: dict[int, int] = {}
        self._line: deque[int] = deque()
        self._in_line = 0
        self._ends: deque[int] = deque()

    def opened(self, batch: int, first: int, count: int) -> None:
        """A batch of the source arrived."""
        if self._rows is None:
            self._ends.append(first + count)

    def begun(self, chunk: int) -> None:
        """The order does not depend on when a chunk was begun."""

    def finished(self, chunk: int) -> None:
        """A chunk's last stage is done."""
        self._push(chunk)
        self._advance()

    def withdrawn(self, chunk: int) -> None:
        """A chunk starts again: what stands behind it in the line waits for it."""
        first = self._chunks.first[chunk]
        if self._chunks.state[chunk] != FINISHED or first >= self._next:
            return
        while self._line and self._chunks.first[self._line[-1]] >= first:
            behind = self._line.pop()
            self._in_line -= self._chunks.count[behind]
            if behind != chunk:
                self._push(behind)
        # gone rows between this chunk and the old front stay passed over by their own entries
        self._next = first
        self._advance()

    def gone(self, first: int, count: int, batch: int) -> None:
        """Rows that will never be delivered are passed over."""
        self._gone[first] = count
        self._advance()

    def ready(self, version: int, left: int, at_end: bool) -> bool:
        """Whether the line holds a batch."""
        if self._rows is not None:
            return self._in_line >= self._rows or (at_end and 0 < left == self._in_line)
        self._pass_empty_batches()
        return bool(self._line) and self._ends[0] <= self._next

    def room(self, chunk: int, batches: int, version: int) -> int:
        """Rows that are in the next batches, by the rows before them."""
        first, count = self._chunks.first[chunk], self._chunks.count[chunk]
        if self._rows is None:
            self._pass_empty_batches()
            return count if sum(end <= first for end in islice(self._ends, batches)) < batches else 0
        front = self._chunks.first[self._line[0]] if self._line else self._next
        gone = sum(rows for start, rows in self._gone.items() if front <= start < first)
        return max(0, min(count, batches * self._rows - (first - front - gone)))

    def room_again(self, chunk: int, version: int) -> int:
        """Rows that are in the next batch."""
        return self.room(chunk, 1, version)

    def open_batches(self) -> int:
        """Batches of the source that are not delivered."""
        self._pass_empty_batches()
        return len(self._ends)

    def take(self) -> list[tuple[int, int]]:
        """The chunks of the batch; the last one may be cut."""
        chosen: list[tuple[int, int]] = []
        chunks, line = self._chunks, self._line
        end = self._ends.popleft() if self._rows is None else None
        wanted = self._in_line if self._rows is None else min(self._rows, self._in_line)
        while line and wanted and (end is None or chunks.first[line[0]] < end):
            rows = min(wanted, chunks.count[line[0]])
            chosen.append((line[0], rows))
            wanted -= rows
            self._in_line -= rows
            if rows == chunks.count[line[0]]:
                line.popleft()
        self._forget_gone()
        return chosen

    def _push(self, chunk: int) -> None:
        heappush(self._heap, sort_key(self._chunks.first[chunk], tick=self._chunks.tick[chunk], chunk=chunk))

    def _advance(self) -> None:
        while True:
            passed = self._gone.get(self._next)
            if passed is not None:
                self._next += passed
                continue
            while self._heap and not is_current(self._heap[0], self._chunks):
                heappop(self._heap)
            if not self._heap or self._chunks.first[chunk_of(self._heap[0])] != self._next:
                return
            chunk = chunk_of(heappop(self._heap))
            self._line.append(chunk)
            self._in_line += self._chunks.count[chunk]
            self._next += self._chunks.count[chunk]

    def _pass_empty_batches(self) -> None:
        """Forget batches of the source whose rows are all gone."""
        while self._ends and self._ends[0] <= self._next:
            if self._line and self._chunks.first[self._line[0]] < self._ends[0]:
                return
            self._ends.popleft()

    def _forget_gone(self) -> None:
        """Forget gone rows that no withdrawn chunk can bring back: those before the line's front."""
        front = self._chunks.first[self._line[0]] if self._line else self._next
        for first in [first for first in self._gone if first < front]:
            del self._gone[first]
