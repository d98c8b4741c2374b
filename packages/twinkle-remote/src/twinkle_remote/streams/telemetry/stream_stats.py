"""The metrics of a stream, measured or predicted, and their table."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LAGS = 8  # lags that the table shows one by one


@dataclass(frozen=True, slots=True)
class StageStats:
    """Metrics of one stage.

    Attributes:
        data_ranks: Its data ranks.
        rows: Rows that went through it, including rows that were made again or dropped.
        busy: Share of its data ranks' time in which it ran, in [0, 1].
        waiting: Share of their time in which they had no work, of any stage, in [0, 1]. The rest is the overhead of
            calls.
        row_seconds: Mean time of a row: its share of the time of its chunk.
    """

    data_ranks: int
    rows: int = 0
    busy: float = 0.0
    waiting: float = 0.0
    row_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class StreamStats:
    """Metrics of a stream since it was made; `print` shows them as a table.

    Attributes:
        rows: Rows that the loop got.
        seconds: Seconds since the request of the first batch, without the time between epochs.
        batches: Batches that the loop got.
        versions: Versions that were published.
        stages: The metrics of each stage, by name.
        training: Share of the loop's time in which it worked on batches, in [0, 1].
        waiting: Share of its time in which it waited for rows.
        reading: Share of its time in which it read the source.
        lag: Number of rows that the loop got, by their lag in versions.
        redone: Rows that were made again: too old, or lost with a worker.
        dropped: Rows that were too old under `stale="drop"`.
        set_aside: Rows for which a stage raised at each attempt.
    """

    rows: int = 0
    seconds: float = 0.0
    batches: int = 0
    versions: int = 0
    stages: Mapping[str, StageStats] = field(default_factory=dict)
    training: float = 0.0
    waiting: float = 0.0
    reading: float = 0.0
    lag: Counter[int] = field(default_factory=Counter)
    redone: int = 0
    dropped: int = 0
    set_aside: int = 0

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
        head = f"{self.rows:,} rows in {self.seconds:.1f} s: {self.rows_per_second:,.1f} rows/s"
        cells = [("", "data ranks", "rows", "s/row", "busy", "waiting")]
        for name, stage in self.stages.items():
            figures = f"{stage.rows:,}", f"{stage.row_seconds:.3g}", f"{stage.busy:.0%}", f"{stage.waiting:.0%}"
            cells.append((name, f"{stage.data_ranks:,}", *figures))
        by_row = self.training * self.seconds / (self.rows or 1)
        cells.append(("the loop", "", f"{self.rows:,}", f"{by_row:.3g}", f"{self.training:.0%}", f"{self.waiting:.0%}"))
        lines = [f"{head}, {self.batches:,} batches, {self.versions:,} versions", *_table(cells)]
        if self.reading >= 0.01:
            lines.append(f"the loop read the source for {self.reading:.0%} of the time")
        lines.append(f"lag: mean {self.mean_lag:.2f}, worst {self.worst_lag}{self._lags()}")
        lines.append(f"rows made again {self.redone:,}, dropped {self.dropped:,}, set aside {self.set_aside:,}")
        return "\n".join(lines)

    def _lags(self) -> str:
        total = self.lag.total()
        shown = [f"{lag}: {self.lag[lag] / total:.1%}" for lag in sorted(self.lag)[:_LAGS]]
        more = sum(self.lag[lag] for lag in sorted(self.lag)[_LAGS:])
        return f" ({', '.join(shown)}{f', more: {more / total:.1%}' if more else ''})" if shown else ""


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]))
    return lines
