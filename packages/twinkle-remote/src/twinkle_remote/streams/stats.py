"""The metrics of a stream: rows, versions, lags, busy seconds of stages, and what the loop waits for."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from twinkle_remote.streams.schedule import Counts

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


@dataclass(frozen=True, slots=True)
class StreamStats:
    """Metrics of a stream since it was made or a state was loaded; `print` shows them as a table.

    Attributes:
        rows: Rows that the loop got.
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

    rows: int = 0
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
    def rows_per_second(self) -> float:
        """Rows that the loop got per second."""
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def mean_lag(self) -> float:
        """The mean lag of a row, in versions."""
        return sum(lag * rows for lag, rows in self.lag.items()) / (self.lag.total() or 1)

    @property
    def worst_lag(self) -> int:
        """The largest lag of a row, in versions."""
        return max(self.lag, default=0)

    def __str__(self) -> str:
        lines = [
            f"{self.rows:,} rows in {self.seconds:.1f} s: {self.rows_per_second:,.1f} rows/s, "
            f"{self.batches:,} batches, {self.versions:,} versions"
        ]
        width = max([len(name) for name in self.stages], default=0)
        for name, stage in self.stages.items():
            busy = stage.busy_seconds / ((self.seconds or 1.0) * stage.data_ranks)
            figures = f"{stage.rows:,} rows, {stage.busy_seconds / (stage.rows or 1):.3g} s a row, busy {busy:.0%}"
            lines.append(f"{name.ljust(width)}  {stage.data_ranks:,} data ranks, {figures}")
        lines.append(f"the loop waited for {self.waiting:.0%} of the time, and read the source for {self.reading:.0%}")
        lines.append(f"lag: mean {self.mean_lag:.2f}, worst {self.worst_lag}{self._lags()}")
        lines.append(
            f"rows made again {self.redone:,}, dropped {self.dropped:,}, skipped {self.skipped:,}, "
            f"refused {self.refused:,}"
        )
        return "\n".join(lines)

    def _lags(self) -> str:
        total = self.lag.total()
        shown = [f"{lag}: {self.lag[lag] / total:.1%}" for lag in sorted(self.lag)[:_LAGS]]
        more = sum(self.lag[lag] for lag in sorted(self.lag)[_LAGS:])
        return f" ({', '.join(shown)}{f', more: {more / total:.1%}' if more else ''})" if shown else ""


class Record:
    """Sums since a stream was made; each number is changed by one thread.

    Args:
        stages: Name and data ranks of each stage.

    Attributes:
        counts: What became of rows.
        stages: The sums of each stage; a name that comes again has its number.
        batches: Batches that the loop was given.
        versions: Versions that were published.
    """

    def __init__(self, stages: Sequence[tuple[str, int]]) -> None:
        self.counts = Counts()
        self.stages: list[StageStats] = [StageStats(ranks) for _, ranks in stages]
        names = [name for name, _ in stages]
        self._names = [
            name if names.index(name) == place else f"{name} #{names[: place + 1].count(name)}"
            for place, name in enumerate(names)
        ]
        self.batches = self.versions = 0
        self._waited = self._reading = self._active = 0.0
        self._since: float | None = None
        self._asked: float | None = None

    def asks(self) -> None:
        """The loop asks for a batch."""
        self._asked = time.perf_counter()
        if self._since is None:
            self._since = self._asked

    def read(self, began: float) -> None:
        """The loop has read the source since then, by `perf_counter`."""
        self._reading += time.perf_counter() - began

    def answered(self, *, over: bool) -> None:
        """The loop has its batch, or its error; or the epoch is over."""
        now = time.perf_counter()
        if self._asked is not None:
            self._waited += now - self._asked
            self._asked = None
        if over:
            self._active += 0.0 if self._since is None else now - self._since
            self._since = None
        else:
            self.batches += 1

    def ran(self, stage: int, rows: int, seconds: float) -> None:
        """A call of a stage is over."""
        own = self.stages[stage]
        own.rows += rows
        own.busy_seconds += seconds

    def stats(self) -> StreamStats:
        """The metrics now."""
        now, counts = time.perf_counter(), self.counts
        seconds = self._active + (0.0 if self._since is None else now - self._since)
        waited = self._waited + (0.0 if self._asked is None else now - self._asked)
        return StreamStats(
            counts.lag.total(),
            seconds,
            self.batches,
            self.versions,
            dict(zip(self._names, map(replace, self.stages), strict=True)),
            max(0.0, waited - self._reading) / (seconds or 1.0),
            self._reading / (seconds or 1.0),
            counts.lag.copy(),
            counts.redone,
            counts.dropped,
            counts.skipped,
            counts.refused,
        )
