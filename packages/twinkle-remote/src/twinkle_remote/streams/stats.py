"""The metrics of a stream: rows, versions, lags, busy seconds of stages, and what the loop waits for."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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

    Attributes:
        seconds: Seconds since the request of the first batch, without the time between epochs.
        batches: Batches that the loop got.
        versions: Versions that were published.
        stages: The metrics of each stage, by name.
        waiting: Share of the loop's time in which it waited for rows, in [0, 1].
        reading: Share of its time in which it read the source.
        lag: Number of rows that the loop got, by their lag in versions.
        redone: Rows that were made again because a worker was lost.
        dropped: Rows that were too old under `stale="drop"`.
        skipped: Rows for which a stage raised twice under `on_error="skip"`.
        refused: Rows that `keep=` did not keep.
    """

    seconds: float = 0.0
    batches: int = 0
    versions: int = 0
    stages: Mapping[str, StageStats] = field(default_factory=dict)
    waiting: float = 0.0
    reading: float = 0.0
    lag: Counter[int] = field(default_factory=Counter)
    redone: int = 0
    dropped: int = 0
    skipped: int = 0
    refused: int = 0

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


class Record:
    """Counts and times of a stream; each number is changed by one thread.

    Args:
        stages: Name and data ranks of each stage.

    Attributes:
        sums: The counts; its times and shares are those of `stats`.
        stages: The sums of each stage; a name that comes again has its number.
    """

    def __init__(self, stages: Sequence[tuple[str, int]]) -> None:
        named: dict[str, StageStats] = {}
        for name, ranks in stages:
            again = sum(one.partition(" #")[0] == name for one in named)
            named[f"{name} #{again + 1}" if again else name] = StageStats(ranks)
        self.sums, self.stages = StreamStats(stages=named), list(named.values())
        self._waited = self._read = self._before = 0.0
        self._since: float | None = None  # the request of the epoch's first batch

    def read(self, began: float) -> None:
        """The loop has read the source since then, by `perf_counter`."""
        self._read += time.perf_counter() - began

    def answered(self, asked: float, *, over: bool) -> None:
        """The loop, which has asked then, has its batch; or its error, or the end of the epoch."""
        now = time.perf_counter()
        since = asked if self._since is None else self._since
        self._waited += now - asked
        self._since = None if over else since
        if over:
            self._before += now - since
        else:
            self.sums.batches += 1

    def ran(self, stage: int, rows: int, seconds: float) -> None:
        """A call of a stage is over."""
        self.stages[stage].rows += rows
        self.stages[stage].busy_seconds += seconds

    def stats(self) -> StreamStats:
        """The metrics now."""
        seconds = self._before + (0.0 if self._since is None else time.perf_counter() - self._since)
        return replace(
            self.sums,
            seconds=seconds,
            stages={name: replace(stage) for name, stage in self.sums.stages.items()},
            waiting=max(0.0, self._waited - self._read) / (seconds or 1.0),
            reading=self._read / (seconds or 1.0),
            lag=self.sums.lag.copy(),
        )
