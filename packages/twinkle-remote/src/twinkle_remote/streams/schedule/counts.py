"""Counts of a stream: rows delivered, made again, dropped, set aside, and their lags."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace


@dataclass(slots=True)
class StreamCounts:
    """Rows, counted since the stream was made.

    Attributes:
        delivered: Rows that the loop was given.
        redone: Rows that were made again: too old, or lost with a worker.
        dropped: Rows that were too old under `stale="drop"`.
        beyond: Rows that were older than the bound, and were used because they had been made again once.
        set_aside: Rows for which a stage raised at each attempt.
        lag: Delivered rows by their lag in versions.
    """

    delivered: int = 0
    redone: int = 0
    dropped: int = 0
    beyond: int = 0
    set_aside: int = 0
    lag: Counter[int] = field(default_factory=Counter)

    def with_delivered(self, rows: int, lag: int) -> StreamCounts:
        """The counts after rows of one lag were delivered."""
        return replace(self, delivered=self.delivered + rows, lag=self.lag + Counter({lag: rows}))

    @property
    def worst_lag(self) -> int:
        """The largest lag of a delivered row, in versions."""
        return max(self.lag, default=0)
