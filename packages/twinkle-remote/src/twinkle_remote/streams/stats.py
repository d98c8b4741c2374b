"""The metrics of a stream: rows, versions, lags, busy seconds of stages, and what the loop waits for."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_LAGS = 8  # lags that the table shows one by one


@dataclass(slots=True)
class StageStats:
    """Metrics of one stage.

    Attributes:
        data_ranks: Its data ranks.
        rows: Rows that went through it, including rows that were made again or left out.
        busy_seconds: Seconds of its calls, summed over data ranks; with `ahead=0`, those until the call returned.
    """

    data_ranks: int
    rows: int = 0
    busy_seconds: float = 0.0


@dataclass(slots=True)
class StreamStats:
    """Metrics of a stream since it was made or a state was loaded; `print` shows them as a table.

    The stream's own are changed while it runs, each number by one thread, and `snapshot` gives those of a program.

    Attributes:
        stages: The metrics of each stage, by name; a name that comes again has its number.
        version: Version of the weights now.
        seconds: Seconds since the request of the first batch, without the time between epochs.
        waited_seconds: Seconds of these in which the loop waited for a batch, and read the source.
        read_seconds: Seconds in which it read the source.
        batches: Batches that the loop got.
        versions: Versions that were published.
        lag: Number of rows that the loop got, by their lag in versions.
        redone: Rows that were made again because a worker was lost.
        dropped: Rows that were too old under `stale="drop"`.
        skipped: Rows for which a stage raised twice under `on_error="skip"`.
        refused: Rows that `keep=` did not keep.
    """

    stages: Mapping[str, StageStats] = field(default_factory=dict)
    version: int = 0
    seconds: float = 0.0
    waited_seconds: float = 0.0
    read_seconds: float = 0.0
    batches: int = 0
    versions: int = 0
    lag: Counter[int] = field(default_factory=Counter)
    redone: int = 0
    dropped: int = 0
    skipped: int = 0
    refused: int = 0
    _since: float | None = field(default=None, repr=False)  # the request of the epoch's first batch

    @property
    def waiting(self) -> float:
        """The share of the loop's time in which it waited for rows, in [0, 1]."""
        return max(0.0, self.waited_seconds - self.read_seconds) / (self.seconds or 1.0)

    @property
    def reading(self) -> float:
        """The share of the loop's time in which it read the source, in [0, 1]."""
        return self.read_seconds / (self.seconds or 1.0)

    @property
    def rows(self) -> int:
        """Rows that the loop got."""
        return self.lag.total()

    @property
    def rows_per_second(self) -> float:
        """Rows that the loop got per second."""
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def mean_lag(self) -> float:
        """The mean lag of a row, in versions."""
        return sum(lag * rows for lag, rows in self.lag.items()) / (self.rows or 1)

    @property
    def worst_lag(self) -> int:
        """The largest lag of a row, in versions."""
        return max(self.lag, default=0)

    def __str__(self) -> str:
        lines = [
            f"{self.rows:,} rows in {self.seconds:.1f} s: {self.rows_per_second:,.1f} rows/s, "
            f"{self.batches:,} batches, {self.versions:,} versions"
        ]
        width = max(map(len, self.stages), default=0)
        for name, stage in self.stages.items():
            busy = stage.busy_seconds / ((self.seconds or 1.0) * stage.data_ranks)
            figures = f"{stage.rows:,} rows, {stage.busy_seconds / (stage.rows or 1):.3g} s a row, busy {busy:.0%}"
            lines.append(f"{name.ljust(width)}  {stage.data_ranks:,} data ranks, {figures}")
        lags = sorted(self.lag)
        shares = [f"{lag}: {self.lag[lag] / self.rows:.1%}" for lag in lags[:_LAGS]]
        if more := sum(self.lag[lag] for lag in lags[_LAGS:]):
            shares.append(f"more: {more / self.rows:.1%}")
        lines.append(f"the loop waited for {self.waiting:.0%} of the time, and read the source for {self.reading:.0%}")
        lines.append(f"lag: mean {self.mean_lag:.2f}, worst {self.worst_lag} ({', '.join(shares) or 'no rows'})")
        left_out = f"dropped {self.dropped:,}, skipped {self.skipped:,}, refused {self.refused:,}"
        return "\n".join([*lines, f"rows made again {self.redone:,}, {left_out}"])

    def answered(self, asked: float, *, over: bool) -> None:
        """The loop, which has asked then, has its batch; or its error, or the end of the epoch."""
        now = time.perf_counter()
        since = asked if self._since is None else self._since
        self.waited_seconds += now - asked
        self.batches += not over
        self.seconds += now - since if over else 0.0
        self._since = None if over else since

    def ran(self, stage: int, rows: int, seconds: float) -> None:
        """A call of a stage is over; that of `keep=` is not counted."""
        for own in list(self.stages.values())[stage : stage + 1]:
            own.rows += rows
            own.busy_seconds += seconds

    def snapshot(self) -> StreamStats:
        """The metrics now."""
        now = self.seconds + (0.0 if self._since is None else time.perf_counter() - self._since)
        stages = {name: replace(stage) for name, stage in self.stages.items()}
        return replace(self, seconds=now, stages=stages, lag=self.lag.copy(), _since=None)


def stats_of(stages: Iterable[tuple[str, int]], version: int = 0) -> StreamStats:
    """The metrics of a stream that begins, of stages with a name and a number of data ranks each."""
    named: dict[str, StageStats] = {}
    for name, ranks in stages:
        again = sum(one.partition(" #")[0] == name for one in named)
        named[f"{name} #{again + 1}" if again else name] = StageStats(ranks)
    return StreamStats(named, version)
