"""A run of a schedule under a virtual clock: throughput, lag and waste for given durations."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import cycle, repeat
from typing import TYPE_CHECKING

from twinkle_remote.streams.schedule.occupancy import Occupancies
from twinkle_remote.streams.schedule.scheduler import Scheduler
from twinkle_remote.streams.schedule.simulated.load import SimulatedRun
from twinkle_remote.streams.schedule.simulated.whole_calls import simulate_whole_calls

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.streams.options import StreamRules
    from twinkle_remote.streams.schedule.decisions import StageCall
    from twinkle_remote.streams.schedule.intake import Intake
    from twinkle_remote.streams.schedule.simulated.load import Load

_SOURCE_ROWS = 32  # rows of a batch of the source where they are not known


class Servers:
    """Runs calls on data ranks, each `width` of them at the same time; the others wait their turn.

    Args:
        width: Calls at the same time, at or above 1.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._free: dict[int, list[float]] = {}

    def run(self, rank: int, now: float, seconds: float) -> float:
        """Begin a call on a rank, when it may; returns its end."""
        free = self._free.setdefault(rank, [])
        while free and free[0] <= now:
            heappop(free)
        began = now
        for _ in repeat(None, len(free) + 1 - self._width):
            began = heappop(free)
        end = began + seconds
        heappush(free, end)
        return end


def simulate(
    rules: StreamRules,
    pools: Sequence[int],
    stages: Sequence[int],
    load: Load,
    widths: Sequence[int] | None = None,
    intakes: Sequence[Intake] | None = None,
) -> SimulatedRun:
    """Run a stream under a virtual clock.

    Args:
        rules: The options.
        pools: Number of data ranks of each pool of workers.
        stages: The pool of each stage.
        load: What there is to do.
        widths: For each stage, calls that one data rank runs at the same time; None for one.
        intakes: What each stage takes at a time; None for one call, with what waits.
    """
    read = load.read or rules.rows or _SOURCE_ROWS
    if rules.ahead == 0:
        return simulate_whole_calls(pools, stages, load, rules.rows or read)
    schedule = Scheduler(rules, pools, stages, intakes=intakes)
    return _Simulation(schedule, pools, stages, load, widths or [1] * len(stages)).run(read)


class _Simulation:
    def __init__(
        self, schedule: Scheduler, pools: Sequence[int], stages: Sequence[int], load: Load, widths: Sequence[int]
    ) -> None:
        self._schedule = schedule
        self._load = load
        self._ranks = [pools[pool] for pool in stages]
        # Stages that run one call at a time on the same workers wait for one another.
        alone = {pool: Servers(1) for pool in stages}
        self._servers = [
            alone[pool] if width == 1 else Servers(width) for pool, width in zip(stages, widths, strict=True)
        ]
        self._now = 0.0
        self._ends: list[tuple[float, StageCall]] = []
        self._occupied = Occupancies(stages)
        self._made = [0] * len(stages)
        self._worked = [0.0] * len(stages)
        self._training = cycle(load.training)
        self._trained = self._reading = self._published = 0.0
        self._batches = 0

    def run(self, read: int) -> SimulatedRun:
        schedule, unread = self._schedule, self._load.rows
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
        if self._load.reading:
            self._reading += self._load.reading
            self._advance(self._load.reading)
        self._schedule.read(min(read, unread))
        return max(0, unread - read)

    def _begin(self) -> None:
        while works := self._schedule.next_works():
            for work in works:
                rows = [row for first, count in work.spans() for row in range(first, first + count)]
                seconds = self._load.call([self._load.duration(row, work.stage) for row in rows])
                self._made[work.stage] += len(rows)
                self._worked[work.stage] += seconds
                self._occupied.take(work.stage, work.rank, self._now)
                heappush(self._ends, (self._servers[work.stage].run(work.rank, self._now, seconds), work))

    def _next_end(self) -> None:
        self._now, work = heappop(self._ends)
        self._occupied.give_back(work.stage, work.rank, self._now)
        for part in work.parts:
            self._schedule.finished(part.chunk)

    def _advance(self, seconds: float) -> None:
        """The loop is at something else, while stages go on."""
        over = self._now + seconds
        self._begin()
        while self._ends and self._ends[0][0] <= over:
            self._next_end()
            self._begin()
        self._now = over

    def _use(self, rows: int) -> None:
        """The loop works on a batch, and publishes."""
        seconds = rows * next(self._training)
        self._batches += 1
        self._trained += seconds
        self._advance(seconds)
        before = int(self._published)
        self._published += self._load.versions
        new = int(self._published) - before
        if new:
            self._schedule.published(self._schedule.version + new)
        self._begin()

    def _figures(self) -> SimulatedRun:
        counts, seconds = self._schedule.counts, self._now or 1.0
        busy, waiting = [], []
        for stage, ranks in enumerate(self._ranks):
            busy.append(self._occupied.busy(stage, self._worked[stage], self._now) / (seconds * ranks))
            waiting.append(max(0.0, 1.0 - self._occupied.of_pool(stage, self._now) / (seconds * ranks)))
        return SimulatedRun(
            self._now,
            counts.delivered,
            self._batches,
            self._schedule.version,
            counts.lag,
            counts.redone,
            counts.dropped,
            self._made,
            self._worked,
            busy,
            waiting,
            self._trained / seconds,
            self._reading / seconds,
        )
