"""The source's own batches, each delivered when all its rows are finished."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from twinkle_remote.streams.schedule.chunk_table import FINISHED

if TYPE_CHECKING:
    from twinkle_remote.streams.schedule.chunk_table import ChunkTable
    from twinkle_remote.streams.schedule.delivery.overtaken import OvertakenChunks
    from twinkle_remote.streams.schedule.lag import LagRule


class WholeBatches:
    """Takes the complete batch that is due first, or that was complete first where there is no bound of lag.

    Under a hard bound of lag a batch of which rows were overtaken is stuck until the loop waits for it: it is held no
    more, its rows that are old are overtaken, too, and when all others can be in time without it, the rest is made.

    Args:
        chunks: The chunks.
        lag: The rule of lag.
        overtaken: The chunks that wait to be made again because they were too old.
    """

    is_by_batch = True

    def __init__(self, chunks: ChunkTable, lag: LagRule, overtaken: OvertakenChunks) -> None:
        self._chunks = chunks
        self._lag = lag
        self._overtaken = overtaken
        self._opened: set[int] = set()  # batches of which a row was begun
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
        self._opened.add(self._chunks.batch[chunk])

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

    def room(self, chunk: int, batches: int, version: int) -> int:
        """All rows of a batch that is begun, or that fits into so many batches in addition to those that are."""
        batch = self._chunks.batch[chunk]
        if self._is_stuck(batch):
            return self.room_again(chunk, version) if self._lag.versions.is_asked else 0
        return self._chunks.count[chunk] if batch in self._opened or len(self._opened) < batches else 0

    def room_again(self, chunk: int, version: int) -> int:
        """All rows of the batch that the loop waits for: the first one with which all others can be in time."""
        batch = self._chunks.batch[chunk]
        held = self._held() if self._is_stuck(batch) else ()
        return self._chunks.count[chunk] if self._lag.room_in_this_batch(held, version, 1) else 0

    def open_batches(self) -> int:
        """Batches of the source that are not delivered."""
        return len(self._missing)

    def take(self) -> list[tuple[int, int]]:
        """The chunks of the batch, in the order of the source."""
        batch = heappop(self._complete)[2]
        del self._missing[batch]
        self._opened.discard(batch)
        members = sorted(self._members.pop(batch), key=self._chunks.first.__getitem__)
        return [(chunk, self._chunks.count[chunk]) for chunk in members]

    def _fill(self, batch: int, rows: int) -> None:
        self._missing[batch] -= rows
        if self._missing[batch]:
            return
        members = self._members[batch]
        if not members:
            del self._missing[batch], self._members[batch]
            self._opened.discard(batch)
            return
        due = min(map(self._due, members)) if self._lag.bounds else 0
        heappush(self._complete, (due, max(self._chunks.tick[chunk] for chunk in members), batch))

    def _is_current(self, entry: tuple[int, int, int]) -> bool:
        _, tick, batch = entry
        if self._missing.get(batch) != 0:
            return False
        return max(self._chunks.tick[chunk] for chunk in self._members[batch]) == tick

    def _held(self) -> list[tuple[int, int, int]]:
        """For each version at which held batches are due: the version, these batches, and the complete ones."""
        found: dict[int, tuple[int, int]] = {}
        for batch, members in self._members.items():
            dues = [self._due(chunk) for chunk in members if self._lag.holds(self._chunks.overtaken[chunk])]
            if dues and not self._is_stuck(batch):
                first = min(dues)
                there, complete = found.get(first, (0, 0))
                found[first] = there + 1, complete + (not self._missing[batch])
        return [(due, there, complete) for due, (there, complete) in found.items()]

    def _due(self, chunk: int) -> int:
        return self._lag.due(self._chunks.begun[chunk], self._chunks.overtaken[chunk])

    def _is_stuck(self, batch: int) -> bool:
        """Whether rows of a batch wait to be made again, and none of such rows is begun."""
        if not self._lag.is_hard or batch not in self._overtaken.batches:
            return False
        return not any(self._chunks.overtaken[chunk] for chunk in self._members[batch])
