"""A stream of one stage under a virtual clock: throughput and lag for given durations, without any overhead.

It runs the same schedule as a real stream: the best possible under its rule. `bench_streams.py` prints the
table of docs/streams.md by it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from twinkle_mesh import balanced_slice
from twinkle_remote.streams.schedule import Rules, Schedule, StageCall, StageRule

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class SimulatedRun:
    """What came of a simulated run.

    Attributes:
        seconds: Time until the loop was through with the last batch.
        rows: Rows that the loop was given.
        lag: These rows by their lag in versions.
        dropped: Rows that were dropped because they were too old.
    """

    seconds: float
    rows: int
    lag: Counter[int]
    dropped: int = 0

    @property
    def rows_per_second(self) -> float:
        """Rows that the loop was given, by the time."""
        return self.rows / self.seconds if self.seconds else 0.0


def simulate(rules: Rules, ranks: int, seconds: Sequence[float], training: float) -> SimulatedRun:
    """Run a stream of one `def` stage, with a version after each batch.

    Args:
        rules: The options, with `rows`.
        ranks: Data ranks of the stage.
        seconds: How long a data rank works on each row.
        training: Seconds that the loop works on one row.
    """
    batch = rules.rows or 1
    if not rules.ahead:
        return _whole_calls(batch, ranks, seconds, training)
    schedule = Schedule(rules, [ranks], [StageRule(0)])
    ends: list[tuple[float, StageCall]] = []
    now, unread, delivered = 0.0, len(seconds), 0

    def begin() -> None:
        while calls := schedule.next_calls():
            for call in calls:
                heappush(ends, (now + sum(seconds[row] for row in call.rows), call))

    def end() -> float:
        at, call = heappop(ends)
        schedule.over(call.stage, call.rank)
        schedule.made(call)
        return at

    while True:
        schedule.ask()
        while True:
            while schedule.wants_rows():
                schedule.at_end = not unread
                if unread:
                    schedule.read(min(batch, unread))
                    unread = max(0, unread - batch)
            begin()
            if schedule.ready() or (schedule.at_end and not schedule.left):
                break
            now = end()
        if not schedule.ready():
            return SimulatedRun(now, delivered, schedule.stats.lag, schedule.stats.dropped)
        rows = len(schedule.take().rows)
        over, delivered = now + rows * training, delivered + rows
        begin()
        while ends and ends[0][0] <= over:
            now = end()
            begin()
        now = over
        schedule.publish(schedule.version + 1)


def _whole_calls(batch: int, ranks: int, seconds: Sequence[float], training: float) -> SimulatedRun:
    """Each batch is one call, divided evenly over the data ranks."""
    now = 0.0
    for first in range(0, len(seconds), batch):
        rows = seconds[first : first + batch]
        now += max(sum(rows[balanced_slice(len(rows), ranks, rank)]) for rank in range(ranks)) + len(rows) * training
    return SimulatedRun(now, len(seconds), Counter({0: len(seconds)}))
