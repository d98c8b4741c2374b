"""The schedule of a stream: events in, decisions out; the same events give the same decisions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinkle_remote.streams.rows.positions import merged
from twinkle_remote.streams.schedule.admission import Admission
from twinkle_remote.streams.schedule.backlog import Backlog
from twinkle_remote.streams.schedule.calls import Calls
from twinkle_remote.streams.schedule.chunk_table import AT_WORK, FINISHED, ChunkTable
from twinkle_remote.streams.schedule.counts import StreamCounts
from twinkle_remote.streams.schedule.data_ranks import DataRanks
from twinkle_remote.streams.schedule.decisions import Part
from twinkle_remote.streams.schedule.delivery.arrival import ArrivalOrder
from twinkle_remote.streams.schedule.delivery.overtaken import OvertakenChunks
from twinkle_remote.streams.schedule.delivery.source_order import SourceOrder
from twinkle_remote.streams.schedule.delivery.whole_batches import WholeBatches
from twinkle_remote.streams.schedule.intake import Intake, lanes_of
from twinkle_remote.streams.schedule.lag import LagRule
from twinkle_remote.streams.schedule.setbacks import Setbacks
from twinkle_remote.streams.schedule.versions_a_batch import VersionsABatch
from twinkle_remote.streams.schedule.work_queues import WorkQueues

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_remote.streams.options import StreamRules
    from twinkle_remote.streams.schedule.decisions import Assignment, StageCall
    from twinkle_remote.streams.schedule.delivery.delivery_order import DeliveryOrder

ERRORS = 2
"""How often a stage may raise for a row before the row is set aside."""
LATE = 3
"""How often a call may pass its deadline for a row before the row is set aside."""


@dataclass(slots=True)
class _Totals:
    """Counters of the schedule: rows and batches read, the number of the last event."""

    read: int
    batches: int = 0
    tick: int = 0


class Scheduler:
    """Decides which rows are begun, where, and which are delivered.

    Args:
        rules: The options of the stream; `ahead` is not 0.
        pools: Number of data ranks of each pool of workers.
        stages: The pool of each stage.
        first: Position of the first row.
        version: The version now.
        intakes: What each stage takes at a time; None for one call, with what waits.

    Attributes:
        rules: The options of the stream.
        version: The version now.
        counts: What is counted of rows.
        chunks: The chunks that are not delivered.
        pools: The data ranks of each pool.
        at_end: Whether the source has no more rows.
    """

    def __init__(
        self,
        rules: StreamRules,
        pools: Sequence[int],
        stages: Sequence[int],
        *,
        first: int = 0,
        version: int = 0,
        intakes: Sequence[Intake] | None = None,
    ) -> None:
        self.rules = rules
        self.version = version
        self.counts = StreamCounts()
        self.chunks = ChunkTable()
        takes = list(zip(stages, intakes or [Intake(calls=rules.at_once or 1)] * len(stages), strict=True))
        self.pools = [
            DataRanks(n, lanes_of([intake for of_pool, intake in takes if of_pool == pool]))
            for pool, n in enumerate(pools)
        ]
        self.at_end = False
        self._stages = tuple(stages)
        self._versions = versions = VersionsABatch(rules.max_lag)
        self._lag = LagRule(rules.max_lag, rules.stale, versions)
        self._admission = Admission(rules.ahead, rules.max_lag, rules.rows or 1, rules.rows is None, versions)
        self._backlog = Backlog(joined=rules.rows is not None)
        overtaken = OvertakenChunks(self.chunks)
        self._delivery = self._choose_delivery(first, overtaken)
        self._queues = WorkQueues(self.chunks, len(stages), self._lag, self._delivery, overtaken)
        self._setbacks = Setbacks(self.chunks, self._lag, self._delivery, self._queues, self._admission, self.counts)
        of_given_size = rules.chunk is not None
        self._calls = Calls(
            self.chunks, self._queues, self._setbacks, self._delivery, self.pools, takes, of_given_size=of_given_size
        )
        self._totals = _Totals(first)

    def _choose_delivery(self, first: int, overtaken: OvertakenChunks) -> DeliveryOrder:
        if self.rules.order == "source":
            return SourceOrder(self.chunks, self.rules.rows, first)
        if self.rules.rows is None:
            return WholeBatches(self.chunks, self._lag, overtaken)
        return ArrivalOrder(self.chunks, self.rules.rows, self._lag, overtaken)

    @property
    def left(self) -> int:
        """Rows that were read, and are neither delivered nor given up."""
        return self._admission.unused + self._backlog.rows

    @property
    def at_work(self) -> int:
        """Chunks that data ranks have."""
        return self._calls.at_work

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

    def next_epoch(self) -> None:
        """The source begins its next epoch; the rows of the last one are delivered."""
        self.at_end = False
        self._versions.pause()

    def _admit(self) -> None:
        size = self.rules.chunk or 1
        while self._backlog.rows:
            room = self._admission.room()
            beyond = 0 if room else self._room_of_a_held_batch()
            if not room and not beyond:
                return
            for _ in range(beyond // size or 1):
                self._admit_chunk(min(room or size, size))

    def _admit_chunk(self, most: int) -> None:
        if not self._backlog.rows:
            return
        first, count, batch, made = self._backlog.take(most)
        chunk = self.chunks.add(first, count, batch)
        self._admission.unused += count
        if made is None:
            self._queues.put(chunk)
        else:
            self._accept_made(chunk, *made)

    def _room_of_a_held_batch(self) -> int:
        """Rows that are admitted beyond `ahead`, because the loop could wait for them for ever.

        Complete batches wait for one that would be overtaken. Of that one rows may be left that were not admitted: then
        nothing is at work, and it is the next one, because batches are admitted one after the other.
        """
        waits = self._admission.whole and self._versions.is_asked and not self.at_work
        if not waits or self._queues.can_begin(self.version) or self.ready():
            return 0
        return self.rules.chunk or self._calls.most_rows(0, self._admission.batch)

    def _accept_made(self, chunk: int, begun: int, ended: int) -> None:
        self.chunks.begun[chunk] = begun
        self.chunks.stage[chunk] = len(self._stages) - 1
        self._delivery.begun(chunk)
        if not self._setbacks.is_overtaken(chunk, self.version):
            self._finish(chunk, ended)

    # work

    def next_works(self) -> Sequence[StageCall]:
        """The next calls, one for a data rank at most; empty while none waits that a data rank has room for."""
        self._admit()
        for stage in reversed(range(len(self._stages))):
            works = self._calls.begin(stage, self.version, self._admission.batch)
            if works:
                return works
        return ()

    def assignment(self, chunk: int) -> Assignment:
        """The work of a chunk that a data rank has."""
        return self._calls.assignment(chunk)

    def is_finished(self, chunk: int) -> bool:
        """Whether a chunk waits for its delivery."""
        return self.chunks.count[chunk] > 0 and self.chunks.state[chunk] == FINISHED

    def finished(self, chunk: int) -> None:
        """A data rank finished a stage for a chunk."""
        self._calls.leave(chunk)
        if self._setbacks.is_overtaken(chunk, self.version):
            return
        if self.chunks.stage[chunk] + 1 < len(self._stages):
            self.chunks.stage[chunk] += 1
            self._queues.put(chunk)
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
        self._calls.leave(chunk)
        if self.failed_before(chunk):
            self._setbacks.set_aside(chunk)
            return ()
        self.chunks.errors[chunk] += 1
        return self._setbacks.again(chunk, self.chunks.stage[chunk])

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
            self._calls.leave(chunk)
        if late and self.late_before(chunk):
            self._setbacks.set_aside(chunk)
            return ()
        self.chunks.late[chunk] += late
        self.chunks.losses[chunk] = min(self.chunks.losses[chunk] + (not late), 100)
        self.counts.redone += self.chunks.count[chunk]
        return self._setbacks.again(chunk, min(stage, self.chunks.stage[chunk]))

    def rank_lost(self, pool: int, rank: int) -> None:
        """A data rank takes no more work."""
        self.pools[pool].set_usable(rank, False)

    def rank_back(self, pool: int, rank: int) -> None:
        """A data rank takes work again."""
        self.pools[pool].set_usable(rank, True)

    def _finish(self, chunk: int, ended: int) -> None:
        chunks = self.chunks
        self._totals.tick += 1
        chunks.tick[chunk], chunks.ended[chunk], chunks.state[chunk] = self._totals.tick, ended, FINISHED
        self._setbacks.watch(chunk)
        self._delivery.finished(chunk)

    # versions

    def published(self, version: int) -> None:
        """A version was published.

        Args:
            version: Its number, not below the last one.
        """
        self._versions.published(max(0, version - self.version))
        self.version = max(self.version, version)
        self._setbacks.overtake(self.version)

    # the loop

    def ask(self) -> None:
        """The loop wants the next batch; it is through with those that it was given."""
        self._versions.ask()
        self._admit()

    def ready(self) -> bool:
        """Whether the batch that the loop asked for can be taken."""
        at_end = self.at_end and not self._backlog.rows
        return self._delivery.ready(self.version, self.left, at_end)

    def take(self) -> Sequence[Part]:
        """The rows of the batch that is ready."""
        parts = [self._part(chunk, count) for chunk, count in self._delivery.take()]
        rows = sum(part.rows for part in parts)
        self._admission.unused -= rows
        self._versions.delivered()
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
        if self._lag.is_beyond(begun, self.version):
            self.counts.beyond += count
        return Part(chunk, first, cut, count, begun, ended, whole)

    def take_given_up(self) -> Sequence[tuple[int, int]]:
        """First row and number of the rows that were dropped or set aside since this was asked last."""
        given_up, self._setbacks.given_up = self._setbacks.given_up, []
        return given_up

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
