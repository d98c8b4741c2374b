"""The source's own batches, each delivered when all its rows are finished."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from twinkle_remote.streams.schedule.chunk_table import FINISHED

if TYPE_CHECKING:
    from twinkle_remote.streams.schedule.chunk_table import ChunkTable
    from twinkle_remote.streams.schedule.lag import LagRule


class WholeBatches:
    """Takes the complete batch that was begun first, or that was complete first where there is no bound of lag.

    Args:
        chunks: The chunks.
        lag: The rule of lag.
    """

    def __init__(self, chunks: ChunkTable, lag: LagRule) -> None:
        self._chunks = chunks
        self._lag = lag
        self._missing: dict[int, int] = {}
        self._members: dict[int, dict[int, None]] = {}
        self._complete: list[tuple[int, int, int]] = []

    def opened(self, batch: int, first: int, count: int) -> None:
        """A batch of the source arrived."""
        if count:
            self._missing[batch] = count
            self._members[batch] = {}

    def begun(self, chunk: int) -> None:
        """A chunk's first stage began."""
        self._members[self._chunks.batch[chunk]][chunk] = None

    def finished(self, chunk: int) -> None:
        """A chunk's last stage is done."""
        self._fill(self._chunks.batch[chunk], self._chunks.count[chunk])

    def withdrawn(self, chunk: int) -> None:
        """A begun chunk starts again or is given up: its batch is not complete."""
        batch = self._chunks.batch[chunk]
        del self._members[batch][chunk]
        if self._chunks.state[chunk] == FINISHED:
            self._missing[batch] += self._chunks.count[chunk]

    def gone(self, first: int, count: int, batch: int) -> None:
        """Rows that will never be delivered; their batch is shorter."""
        self._fill(batch, count)

    def ready(self, version: int, left: int, at_end: bool) -> bool:
        """Whether a batch is complete, and no held batch would be overtaken."""
        while self._complete and not self._is_current(self._complete[0]):
            heappop(self._complete)
        if not self._complete:
            return False
        return self._lag.in_time(self._held(), version, 1)

    def open_batches(self) -> int:
        """Batches of the source that are not delivered."""
        return len(self._missing)

    def take(self) -> list[tuple[int, int]]:
        """The chunks of the batch, in the order of the source."""
        batch = heappop(self._complete)[2]
        del self._missing[batch]
        members = sorted(self._members.pop(batch), key=self._chunks.first.__getitem__)
        return [(chunk, self._chunks.count[chunk]) for chunk in members]

    def _fill(self, batch: int, rows: int) -> None:
        self._missing[batch] -= rows
        if self._missing[batch]:
            return
        members = self._members[batch]
        if not members:
            del self._missing[batch], self._members[batch]
            return
        bounded = self._lag.max_lag is not None
        began = min(self._chunks.begun[chunk] for chunk in members) if bounded else 0
        heappush(self._complete, (began, max(self._chunks.tick[chunk] for chunk in members), batch))

    def _is_current(self, entry: tuple[int, int, int]) -> bool:
        _, tick, batch = entry
        if self._missing.get(batch) != 0:
            return False
        return max(self._chunks.tick[chunk] for chunk in self._members[batch]) == tick

    def _held(self) -> list[tuple[int, int, int]]:
        """For each version under which held batches were begun: the version, these batches, and the complete ones."""
        chunks = self._chunks
        found: dict[int, tuple[int, int]] = {}
        for batch, members in self._members.items():
            begun = [chunks.begun[chunk] for chunk in members if self._lag.holds(chunks.overtaken[chunk])]
            if begun:
                first = min(begun)
                there, complete = found.get(first, (0, 0))
                found[first] = there + 1, complete + (not self._missing[batch])
        return [(begun, there, complete) for begun, (there, complete) in found.items()]
