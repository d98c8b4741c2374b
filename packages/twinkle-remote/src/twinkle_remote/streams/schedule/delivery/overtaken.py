"""The chunks that wait to be made again because they were too old."""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twinkle_remote.streams.schedule.chunk_table import ChunkTable


class OvertakenChunks:
    """Waiting chunks by their first row.

    Args:
        chunks: The chunks.

    Attributes:
        rows: Their rows.
        batches: How many of them each batch of the source has.
    """

    def __init__(self, chunks: ChunkTable) -> None:
        self._chunks = chunks
        self._heap: list[tuple[int, int]] = []
        self._members: set[int] = set()
        self.rows = 0
        self.batches: Counter[int] = Counter()

    def add(self, chunk: int) -> None:
        """A chunk waits."""
        heappush(self._heap, (self._chunks.first[chunk], chunk))
        self._members.add(chunk)
        self.rows += self._chunks.count[chunk]
        self.batches[self._chunks.batch[chunk]] += 1

    def has(self, chunk: int) -> bool:
        """Whether a chunk waits."""
        return chunk in self._members

    def in_order(self) -> list[int]:
        """All of them, by their first row."""
        return sorted(self._members, key=self._chunks.first.__getitem__)

    def first(self) -> int | None:
        """The one with the first row."""
        while self._heap and self._heap[0][1] not in self._members:
            heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def remove(self, chunk: int) -> None:
        """A chunk is begun."""
        self._members.remove(chunk)
        self.rows -= self._chunks.count[chunk]
        batch = self._chunks.batch[chunk]
        self.batches[batch] -= 1
        if not self.batches[batch]:
            del self.batches[batch]
