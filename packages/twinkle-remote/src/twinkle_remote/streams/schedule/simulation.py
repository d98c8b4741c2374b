"""A run of a schedule under a virtual clock: throughput, lag and waste for given durations."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from twinkle_remote.streams.schedule.scheduler import Scheduler

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Sequence

    from twinkle_remote.streams.rules import StreamRules


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """The figures of a simulated run.

    Attributes:
        seconds: Time until the loop was through with the last batch.
        rows: Rows that the loop was given.
        lag: These by their lag in versions.
        redone: Rows that were made again because they were too old.
        dropped: Rows that were dropped because they were too old.
        busy: For each stage, the share of its data ranks' places that were at work.
        training: Share of the time in which the loop worked on a batch.
    """

    seconds: float
    rows: int
    lag: Counter[int]
    redone: int
    dropped: int
    busy: Sequence[float]
    training: float

    @property
    def rows_per_second(self) -> float:
        """Rows that the loop was given, by the time."""
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def worst_lag(self) -> int:
        """The largest lag of a row."""
        return max(self.lag, default=0)


def simulate(
    rules: StreamRules,
    pools: Sequence[int],
    stages: Sequence[int],
    duration: Callable[[int, int], float],
    training: float,
    rows: int,
    *,
    read: int | None = None,
    publishes: bool = True,
) -> SimulatedRun:
    """Run a stream over so many rows of a source that never waits.

    Args:
        rules: The options; `ahead=0` begins a batch when the loop asks for it, and does nothing before that.
        pools: Number of data ranks of each pool of workers.
        stages: The pool of each stage.
        duration: Seconds of a row in a stage; a chunk takes the sum of its rows' seconds.
        training: Seconds that the loop works on one row.
        rows: Rows of the source.
        read: Rows of a batch of the source; None for `rules.rows`, or 32 without it.
        publishes: Whether the loop publishes a version after each batch.
    """
    return _Simulation(rules, pools, stages, duration, training, publishes).run(rows, read or rules.rows or 32)


class _Simulation:
    def __init__(
        self,
        rules: StreamRules,
        pools: Sequence[int],
        stages: Sequence[int],
        duration: Callable[[int, int], float],
        training: float,
        publishes: bool,
    ) -> None:
        self._schedule = Scheduler(rules, pools, stages)
        self._places = [count * rules.at_once for count in pools]
        self._stages = stages
        self._duration = duration
        self._training = training
        self._publishes = publishes
        self._now = 0.0
        self._ends: list[tuple[float, int]] = []
        self._worked = [0.0] * len(stages)
        self._trained = 0.0

    def run(self, rows: int, read: int) -> SimulatedRun:
        schedule, unread = self._schedule, rows
        while True:
            schedule.ask()
            while True:
                while schedule.wants_rows():
                    unread = self._read(unread, read)
                self._begin()
                if schedule.ready() or (schedule.at_end and not schedule.left):
                    break
                self._next_end()
            if not schedule.ready():
                return self._figures()
            self._use(sum(part.rows for part in schedule.take()))

    def _read(self, unread: int, read: int) -> int:
        if not unread:
            self._schedule.source_ended()
            return 0
        self._schedule.read(min(read, unread))
        return max(0, unread - read)

    def _begin(self) -> None:
        while (work := self._schedule.next_work()) is not None:
            seconds = sum(self._duration(row, work.stage) for row in range(work.first, work.first + work.rows))
            self._worked[work.stage] += seconds
            heappush(self._ends, (self._now + seconds, work.chunk))

    def _next_end(self) -> None:
        self._now, chunk = heappop(self._ends)
        self._schedule.finished(chunk)

    def _use(self, rows: int) -> None:
        """The loop works on a batch, while stages go on."""
        seconds = rows * self._training
        self._trained += seconds
        over = self._now + seconds
        self._begin()
        while self._ends and self._ends[0][0] <= over:
            self._next_end()
            self._begin()
        self._now = over
        if self._publishes:
            self._schedule.published(self._schedule.version + 1)
            self._begin()

    def _figures(self) -> SimulatedRun:
        counts, seconds = self._schedule.counts, self._now or 1.0
        pairs = zip(self._worked, self._stages, strict=True)
        busy = [worked / (seconds * self._places[pool]) for worked, pool in pairs]
        return SimulatedRun(
            self._now, counts.delivered, counts.lag, counts.redone, counts.dropped, busy, self._trained / seconds
        )
