"""The schedule of a stream: events in, decisions out; the same events give the same decisions."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from twinkle_remote.streams.positions import merged
from twinkle_remote.streams.schedule.admission import Admission
from twinkle_remote.streams.schedule.arrival import ArrivalOrder
from twinkle_remote.streams.schedule.backlog import Backlog
from twinkle_remote.streams.schedule.chunk_table import AT_WORK, FINISHED, WAITING, ChunkTable
from twinkle_remote.streams.schedule.counts import StreamCounts
from twinkle_remote.streams.schedule.data_ranks import DataRanks
from twinkle_remote.streams.schedule.decisions import Assignment, Part
from twinkle_remote.streams.schedule.delivery_order import chunk_of, is_current, leading, sort_key
from twinkle_remote.streams.schedule.lag import LagRule
from twinkle_remote.streams.schedule.source_order import SourceOrder
from twinkle_remote.streams.schedule.whole_batches import WholeBatches

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from twinkle_remote.streams.rules import StreamRules
    from twinkle_remote.streams.schedule.delivery_order import DeliveryOrder

ERRORS = 2
"""How often a stage may raise for a row before the row is set aside."""
LATE = 3
"""How often a call may pass its deadline for a row before the row is set aside."""


@dataclass(slots=True)
class _Totals:
    """Counters of the schedule: rows read, chunks at work, the number of the last event."""

    read: int
    batches: int = 0
    at_work: int = 0
    tick: int = 0


class Scheduler:
    """Decides which rows are begun, where, and which are delivered.

    Args:
        rules: The options of the stream; `ahead` is not 0.
        pools: Number of data ranks of each pool of workers.
        stages: The pool of each stage.
        first: Position of the first row.
        version: The version now.
        serial: The pools whose data ranks have one chunk at a time.

    Attributes:
        given_up: First row and number of the rows that were dropped or set aside; the caller takes them off.
        overdue: How often rows that had been made again were found too old once more.
    """

    def __init__(
        self,
        rules: StreamRules,
        pools: Sequence[int],
        stages: Sequence[int],
        *,
        first: int = 0,
        version: int = 0,
        serial: Collection[int] = (),
    ) -> None:
        self.rules = rules
        self.version = version
        self.counts = StreamCounts()
        self.chunks = ChunkTable()
        self.pools = [DataRanks(n, 1 if pool in serial else rules.at_once) for pool, n in enumerate(pools)]
        self.at_end = False
        self.given_up: list[tuple[int, int]] = []
        self.overdue = 0
        self._stages = tuple(stages)
        self._lag = LagRule(rules.max_lag, rules.stale)
        self._admission = Admission(rules.ahead, rules.max_lag, rules.rows or 1, rules.rows is None)
        self._backlog = Backlog(joined=rules.rows is not None)
        self._delivery = self._choose_delivery(first)
        self._queues: list[list[int]] = [[] for _ in stages]
        self._ages: list[int] = []
        self._totals = _Totals(first)

    def _choose_delivery(self, first: int) -> DeliveryOrder:
        if self.rules.order == "source":
            return SourceOrder(self.chunks, self.rules.rows, first)
        if self.rules.rows is None:
            return WholeBatches(self.chunks, self._lag)
        return ArrivalOrder(self.chunks, self.rules.rows, self._lag)

    @property
    def left(self) -> int:
        """Rows that were read, and are neither delivered nor given up."""
        return self._admission.unused + self._backlog.rows

    @property
    def at_work(self) -> int:
        """ChunkTable that data ranks have."""
        return self._totals.at_work

    # the source

    def wants_rows(self) -> bool:
        """Whether another batch of the source should be read, so that no row is missed before the loop asks again."""
        if self.at_end or self.left >= self._admission.most():
            return False
        return self._admission.takes_batch(self._delivery.open_batches())

    def read(
        self, count: int, *, consumed: Sequence[tuple[int, int]] = (), made: Mapping[int, tuple[int, int]] | None = None
    ) -> None:
        """A batch of the source arrived.

        Args:
            count: Its rows.
            consumed: Ranges [start, stop) of positions that were delivered before, ascending.
            made: Rows that were finished before, with the versions of their begin and end.
        """
        first, stop, batch = self._totals.read, self._totals.read + count, self._totals.batches
        self._totals.read = stop
        self._totals.batches += 1
        if self.rules.rows is None and count:
            self._admission.batch = max(self._admission.batch, count)
        self._delivery.opened(batch, first, count)
        start = first
        for begin, end in consumed:
            if start < end and begin < stop:
                self._backlog.add(start, max(start, begin), batch, made or {})
                skipped = max(start, begin)
                start = min(stop, end)
                self._delivery.gone(skipped, start - skipped, batch)
        self._backlog.add(start, stop, batch, made or {})
        self._admit()

    def source_ended(self) -> None:
        """The source has no more rows."""
        self.at_end = True

    def source_goes_on(self) -> None:
        """The source begins its next epoch; the rows of the last one are delivered."""
        self.at_end = False

    def _admit(self) -> None:
        while self._backlog.rows:
            room = self._admission.room() or self._room_of_a_held_batch()
            if room == 0:
                return
            first, count, batch, made = self._backlog.take(min(room, self.rules.chunk))
            chunk = self.chunks.add(first, count, batch)
            self._admission.unused += count
            if made is None:
                self._queue(chunk)
            else:
                self._accept_made(chunk, *made)

    def _room_of_a_held_batch(self) -> int:
        """Rows that are admitted beyond `ahead`, because the loop could wait for them for ever.

        Complete batches wait for one that would be overtaken. Of that one rows may be left that were not admitted: then
        nothing is at work, and it is the next one, because batches are admitted one after the other.
        """
        waits = self._admission.whole and self._admission.asked and not self.at_work and not any(self._queues)
        return self.rules.chunk if waits and not self.ready() else 0

    def _accept_made(self, chunk: int, begun: int, ended: int) -> None:
        self.chunks.begun[chunk] = begun
        self.chunks.stage[chunk] = len(self._stages) - 1
        self._delivery.begun(chunk)
        if not self._is_overtaken(chunk):
            self._finish(chunk, ended)

    # work

    def next_work(self) -> Assignment | None:
        """The next chunk for a data rank; None while none waits that a data rank has room for."""
        self._admit()
        for stage in reversed(range(len(self._stages))):
            queue, ranks = self._queues[stage], self.pools[self._stages[stage]]
            while queue:
                chunk = chunk_of(queue[0])
                rank = ranks.next()
                if rank is None:
                    break
                heappop(queue)
                if stage and self._is_overtaken(chunk):
                    continue
                return self._give(chunk, stage, rank, ranks)
        return None

    def _give(self, chunk: int, stage: int, rank: int, ranks: DataRanks) -> Assignment:
        chunks = self.chunks
        ranks.take(rank)
        self._totals.at_work += 1
        chunks.state[chunk], chunks.rank[chunk] = AT_WORK, rank
        if chunks.begun[chunk] < 0:
            chunks.begun[chunk] = self.version
            self._delivery.begun(chunk)
        return self.assignment(chunk)

    def assignment(self, chunk: int) -> Assignment:
        """The work of a chunk that a data rank has."""
        chunks = self.chunks
        stage, rank, begun = chunks.stage[chunk], chunks.rank[chunk], chunks.begun[chunk]
        return Assignment(chunk, stage, rank, chunks.first[chunk], chunks.count[chunk], begun)

    def is_finished(self, chunk: int) -> bool:
        """Whether a chunk waits for its delivery."""
        return self.chunks.count[chunk] > 0 and self.chunks.state[chunk] == FINISHED

    def finished(self, chunk: int) -> None:
        """A data rank finished a stage for a chunk."""
        self._leave_rank(chunk)
        if self._is_overtaken(chunk):
            return
        if self.chunks.stage[chunk] + 1 < len(self._stages):
            self.chunks.stage[chunk] += 1
            self._queue(chunk)
        else:
            self._finish(chunk, self.version)

    def failed_before(self, chunk: int) -> bool:
        """Whether a chunk of one row is set aside when a stage raises for it once more."""
        return self.chunks.count[chunk] == 1 and self.chunks.errors[chunk] + 1 >= ERRORS

    def failed(self, chunk: int) -> Sequence[int]:
        """A stage raised for a chunk.

        Returns:
            The chunks that take its place: itself, or one for each of its rows; empty if its one row is set aside.
        """
        self._leave_rank(chunk)
        if self.failed_before(chunk):
            self._set_aside(chunk)
            return ()
        self.chunks.errors[chunk] += 1
        return self._again(chunk, self.chunks.stage[chunk])

    def late_before(self, chunk: int) -> bool:
        """Whether a chunk of one row is set aside when a call passes its deadline for it once more."""
        return self.chunks.count[chunk] == 1 and self.chunks.late[chunk] + 1 >= LATE

    def lost(self, chunk: int, stage: int = 0, *, late: bool = False) -> Sequence[int]:
        """The worker of a chunk was lost with it; or the result of a finished chunk was lost.

        A death is no reason to leave a row out.

        Args:
            chunk: The chunk.
            stage: The stage that it is made again from.
            late: Its worker had begun it, and has passed the deadline.

        Returns:
            As for `failed`.
        """
        if self.chunks.state[chunk] == AT_WORK:
            self._leave_rank(chunk)
        if late and self.late_before(chunk):
            self._set_aside(chunk)
            return ()
        self.chunks.late[chunk] += late
        self.chunks.losses[chunk] = min(self.chunks.losses[chunk] + (not late), 100)
        self.counts.redone += self.chunks.count[chunk]
        return self._again(chunk, min(stage, self.chunks.stage[chunk]))

    def rank_lost(self, pool: int, rank: int) -> None:
        """A data rank takes no more work."""
        self.pools[pool].set_usable(rank, False)

    def rank_back(self, pool: int, rank: int) -> None:
        """A data rank takes work again."""
        self.pools[pool].set_usable(rank, True)

    def _leave_rank(self, chunk: int) -> None:
        self._totals.at_work -= 1
        self.pools[self._stages[self.chunks.stage[chunk]]].give_back(self.chunks.rank[chunk])

    def _queue(self, chunk: int) -> None:
        self.chunks.state[chunk] = WAITING
        heappush(self._queues[self.chunks.stage[chunk]], sort_key(tick=self.chunks.first[chunk], chunk=chunk))

    def _finish(self, chunk: int, ended: int) -> None:
        chunks = self.chunks
        self._totals.tick += 1
        chunks.tick[chunk], chunks.ended[chunk], chunks.state[chunk] = self._totals.tick, ended, FINISHED
        if self._lag.max_lag is not None and self._lag.stale != "use":
            heappush(self._ages, sort_key(chunks.begun[chunk], tick=chunks.tick[chunk], chunk=chunk))
        self._delivery.finished(chunk)

    def _again(self, chunk: int, stage: int) -> Sequence[int]:
        """Queue a chunk once more; rows that failed together are made apart, so that one cannot fail the others."""
        chunks = self.chunks
        self._delivery.withdrawn(chunk)
        if stage == 0:
            chunks.begun[chunk] = -1
        chunks.state[chunk], chunks.stage[chunk], chunks.cut[chunk] = WAITING, stage, 0
        parts = chunks.split(chunk)
        for part in parts:
            if stage:
                self._delivery.begun(part)
            self._queue(part)
        return parts

    def _set_aside(self, chunk: int) -> None:
        self.counts.set_aside += self.chunks.count[chunk]
        self._give_up(chunk)

    def _give_up(self, chunk: int) -> None:
        chunks = self.chunks
        if chunks.begun[chunk] >= 0:
            self._delivery.withdrawn(chunk)
        self._admission.unused -= chunks.count[chunk]
        self.given_up.append((chunks.first[chunk], chunks.count[chunk]))
        self._delivery.gone(chunks.first[chunk], chunks.count[chunk], chunks.batch[chunk])
        chunks.remove(chunk)

    # versions

    def published(self, version: int) -> None:
        """A version was published.

        Args:
            version: Its number, not below the last one.
        """
        self.version = max(self.version, version)
        self._admission.used()
        while self._ages and self._lag.fate(leading(self._ages[0]), self.version, 0) != "use":
            key = heappop(self._ages)
            if is_current(key, self.chunks):
                self._is_overtaken(chunk_of(key))

    def _is_overtaken(self, chunk: int) -> bool:
        """Apply the rule to a chunk that no data rank has; True if it was dropped or queued again."""
        chunks = self.chunks
        fate = self._lag.fate(chunks.begun[chunk], self.version, chunks.overtaken[chunk])
        if fate == "use":
            if chunks.overtaken[chunk] and self._lag.fate(chunks.begun[chunk], self.version, 0) != "use":
                self.overdue += chunks.count[chunk]
            return False
        if fate == "drop":
            self.counts.dropped += chunks.count[chunk]
            self._give_up(chunk)
            return True
        self.counts.redone += chunks.count[chunk]
        self._delivery.withdrawn(chunk)
        chunks.overtaken[chunk] = min(chunks.overtaken[chunk] + 1, 100)
        chunks.begun[chunk] = chunks.ended[chunk] = -1
        chunks.stage[chunk] = chunks.cut[chunk] = 0
        self._queue(chunk)
        return True

    # the loop

    def ask(self) -> None:
        """The loop wants the next batch; it is through with those that it was given."""
        self._admission.used()
        self._admission.asked = True
        self._admit()

    def ready(self) -> bool:
        """Whether the batch that the loop asked for can be taken."""
        at_end = self.at_end and not self._backlog.rows
        return self._delivery.ready(self.version, self.left, at_end)

    def take(self) -> Sequence[Part]:
        """The rows of the batch that is ready."""
        parts = [self._part(chunk, count) for chunk, count in self._delivery.take()]
        rows = sum(part.rows for part in parts)
        self._admission.delivered(rows)
        self.counts.delivered += rows
        return parts

    def _part(self, chunk: int, count: int) -> Part:
        chunks = self.chunks
        first, cut, begun, ended = chunks.first[chunk], chunks.cut[chunk], chunks.begun[chunk], chunks.ended[chunk]
        whole = count == chunks.count[chunk]
        if whole:
            chunks.remove(chunk)
        else:
            chunks.first[chunk] += count
            chunks.cut[chunk] += count
            chunks.count[chunk] -= count
        self.counts.lag[self.version - begun] += count
        return Part(chunk, first, cut, count, begun, ended, whole)

    # the state

    def open_rows(self) -> Sequence[tuple[int, int]]:
        """Ranges [start, stop) of rows that were read, and are neither delivered nor given up, ascending."""
        chunks = self.chunks
        held = [(chunks.first[chunk], chunks.count[chunk]) for chunk in chunks.live()]
        return merged((first, first + count) for first, count in [*held, *self._backlog.ranges()])

    @property
    def rows_read(self) -> int:
        """Position after the last row that was read."""
        return self._totals.read
