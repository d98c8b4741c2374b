"""The record of a stream's chunks, of the steps of its loop and of versions, by the driver's clock."""

from __future__ import annotations

import time
from collections import deque
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from twinkle_remote.streams.schedule.occupancy import Occupancies
from twinkle_remote.streams.telemetry.stream_stats import StageStats, StreamStats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.streams.schedule.counts import StreamCounts
    from twinkle_remote.streams.schedule.decisions import StageCall
    from twinkle_remote.streams.telemetry.stage_place import StagePlace

_KEPT = 20_000  # chunks, steps and versions whose times are kept

now = time.perf_counter


class ChunkTimes(NamedTuple):
    """A chunk that a data rank ran; seconds of the driver's `perf_counter`.

    Attributes:
        stage: Index of the stage.
        rank: The data rank.
        first: Position of its first row in the source.
        rows: Its rows.
        version: Version of the weights when its first stage began.
        began: When its method began.
        ended: When its method ended.
        failed: It raised, or its worker was lost.
        spans: First row and number of the rows that follow each other in the source; empty if all do.
    """

    stage: int
    rank: int
    first: int
    rows: int
    version: int
    began: float
    ended: float
    failed: bool
    spans: Sequence[tuple[int, int]] = ()


class StepTimes(NamedTuple):
    """A step of the loop: its work on one batch.

    Attributes:
        rows: Rows of the batch.
        version: Version of the weights when it began.
        began: When the batch was there.
        ended: When the loop asked for the next one.
    """

    rows: int
    version: int
    began: float
    ended: float


class StreamRecord:
    """Sums since the stream was made, and the latest times.

    Args:
        places: The place of each stage.

    Attributes:
        chunks: The latest chunks, in the order of their ends.
        steps: The latest steps.
        published: The latest versions: number, begin and end of the sync.
        batches: Batches that the loop was given.
        versions: Versions that were published.
        rows: For each stage, rows that went through it.
        run: For each stage, the sum of its calls' seconds.
        taken: For each stage, its latest chunks: first row, rows, and how long a data rank was taken for them.
        reads: Batches of the source that were read.
        read_rows: Their rows.
        reading: Seconds in which the loop read the source.
        waited: Seconds in which the loop waited for rows.
    """

    def __init__(self, places: Sequence[StagePlace]) -> None:
        self.places = tuple(places)
        self.chunks: deque[ChunkTimes] = deque(maxlen=_KEPT)
        self.steps: deque[StepTimes] = deque(maxlen=_KEPT)
        self.published: deque[tuple[int, float, float]] = deque(maxlen=_KEPT)
        self.batches = self.versions = 0
        self.rows = [0] * len(places)
        self.run = [0.0] * len(places)
        self.taken: list[deque[tuple[int, int, float]]] = [deque(maxlen=_KEPT) for _ in places]
        self.reads = self.read_rows = 0
        self.reading = self.waited = 0.0
        self.wall = time.time() - now()
        self._occupied = Occupancies([place.pool for place in places])
        self._sent: dict[int, float] = {}
        self._received: dict[tuple[int, int], float] = {}
        self._since: float | None = None
        self._asked: float | None = None
        self._open: tuple[int, int, float] | None = None  # the step that goes on: rows, version, begin
        self._active = 0.0
        self._lock = Lock()

    # chunks

    def sent(self, work: StageCall) -> None:
        """A data rank is given a call."""
        with self._lock:
            self._sent[work.number] = at = now()
            self._occupied.take(work.stage, work.rank, at)

    def received(
        self, work: StageCall, seconds: float | None = None, started: float = 0.0, *, failed: bool = False
    ) -> None:
        """The driver knows that a call is over.

        Args:
            work: The call.
            seconds: How long its method ran; None for the whole time since it was sent.
            started: When its method began, by the wall clock.
            failed: It raised, or its worker was lost.
        """
        place, at = self.places[work.stage], now()
        with self._lock:
            sent = self._sent.pop(work.number, at)
            self._occupied.give_back(work.stage, work.rank, at)
            key = (place.pool, work.rank)
            taken = at - (sent if place.width > 1 else max(sent, self._received.get(key, sent)))
            self._received[key] = at
            ran = at - sent if seconds is None else min(seconds, at - sent)
            # The worker's clock is believed between the two times that the driver saw.
            began = min(max(started - self.wall, sent), at - ran) if seconds is not None else sent
            spans, rows, ended = work.spans(), work.rows, began + ran
            several = spans if len(spans) > 1 else ()
            times = (work.stage, work.rank, spans[0][0], rows, work.version, began, ended, failed, several)
            self._add(ChunkTimes(*times))
            if not failed:
                self.taken[work.stage] += [(first, count, taken * count / rows) for first, count in spans]

    def ran(self, times: ChunkTimes, sent: float) -> None:
        """A part of a whole call of a stage is over; nothing was known of it before.

        Args:
            times: When it ran.
            sent: When the call was made, or its rows were there.
        """
        with self._lock:
            self._occupied.add(times.stage, times.ended - times.began)
            self._add(times)
            self.taken[times.stage].append((times.first, times.rows, times.ended - sent))

    def _add(self, chunk: ChunkTimes) -> None:
        self.chunks.append(chunk)
        self.run[chunk.stage] += chunk.ended - chunk.began
        if not chunk.failed:
            self.rows[chunk.stage] += chunk.rows

    # the loop

    def asked(self, there: float = 0.0) -> None:
        """The loop asks for a batch.

        Args:
            there: When the batch that it worked on was there, if the loop itself waited for it.
        """
        with self._lock:
            self._asked = at = now()
            self._end_step(at, there)
            if self._since is None:
                self._since = at

    def _end_step(self, at: float, there: float = 0.0) -> None:
        if self._open is not None:
            rows, version, given = self._open
            began = max(given, min(there, at))
            self.waited += began - given
            self.steps.append(StepTimes(rows, version, began, at))
            self._open = None

    def read(self, rows: int, seconds: float) -> None:
        """The loop read a batch of the source."""
        with self._lock:
            self.reads += rows > 0
            self.read_rows += rows
            self.reading += seconds
            if self._asked is not None:
                self._asked += seconds

    def given(self, rows: int, version: int, there: float) -> None:
        """The loop is given a batch.

        Args:
            rows: Its rows.
            version: The version now.
            there: When enough rows were finished.
        """
        with self._lock:
            if self._asked is not None:
                self.waited += max(0.0, there - self._asked)
                self._asked = None
            self.batches += 1
            self._open = (rows, version, there)

    def publishes(self, version: int, began: float | None = None) -> None:
        """A version was published.

        Args:
            version: Its number.
            began: Wall clock when the sync of the weights began; None if that is not known.
        """
        with self._lock:
            at = now()
            self.versions += 1
            self.published.append((version, at if began is None else min(at, began - self.wall), at))

    def over(self) -> None:
        """The loop has all rows, or is left."""
        with self._lock:
            at = now()
            self._end_step(at)
            self.waited += 0.0 if self._asked is None else max(0.0, at - self._asked)
            self._active += 0.0 if self._since is None else at - self._since
            self._since = self._asked = None
            self._occupied.stop(at)
            self._sent.clear()

    # sums

    def stats(self, counts: StreamCounts) -> StreamStats:
        """Metrics since the stream was made.

        Args:
            counts: The rows of the schedule, delivered and others.
        """
        seconds, waiting = self.seconds(), self.waiting()
        training = max(0.0, seconds - waiting - self.reading)
        whole = seconds or 1.0
        return StreamStats(
            counts.delivered,
            seconds,
            self.batches,
            self.versions,
            {place.name: self._stage(index, whole) for index, place in enumerate(self.places)},
            training / whole,
            waiting / whole,
            self.reading / whole,
            counts.lag.copy(),
            counts.redone,
            counts.dropped,
            counts.set_aside,
        )

    def _stage(self, index: int, seconds: float) -> StageStats:
        place, rows = self.places[index], self.rows[index]
        whole = seconds * place.data_ranks
        busy, waiting = self.busy(index) / whole, max(0.0, 1.0 - self.occupied(index) / whole)
        return StageStats(place.data_ranks, rows, busy, waiting, self.run[index] / rows if rows else 0.0)

    def seconds(self) -> float:
        """Seconds since the first batch was asked for; not those between epochs."""
        with self._lock:
            return self._active + (0.0 if self._since is None else now() - self._since)

    def waiting(self) -> float:
        """Seconds in which the loop waited for rows, until now."""
        with self._lock:
            return self.waited + (0.0 if self._asked is None else max(0.0, now() - self._asked))

    def busy(self, stage: int) -> float:
        """Seconds in which data ranks ran a stage, summed over them; calls side by side count once."""
        with self._lock:
            return self._occupied.busy(stage, self.run[stage], now())

    def occupied(self, stage: int) -> float:
        """Seconds in which data ranks of a stage's pool had work of any stage, summed over them."""
        with self._lock:
            return self._occupied.of_pool(stage, now())
