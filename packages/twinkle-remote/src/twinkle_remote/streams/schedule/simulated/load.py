"""The load of a simulated run, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a simulated run.

    Attributes:
        duration: Seconds of a row in a stage.
        training: Seconds that the loop works on one row; the batches take these in turn.
        rows: Rows of the source.
        read: Rows of a batch of the source; None for those of a batch of the stream, or 32.
        reading: Seconds in which the loop reads a batch of the source.
        versions: Versions that are published for each batch, when the loop is through with it.
        call: Seconds of a call from those of its rows: their sum, or `max` of a stage that computes its rows at once.
    """

    duration: Callable[[int, int], float]
    training: Sequence[float]
    rows: int
    read: int | None = None
    reading: float = 0.0
    versions: float = 1.0
    call: Callable[[Sequence[float]], float] = sum


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """The metrics of a simulated run.

    Attributes:
        seconds: Time until the loop was through with the last batch.
        rows: Rows that the loop was given.
        batches: Batches that it was given.
        versions: Versions that it published.
        lag: Rows that the loop was given, by their lag in versions.
        redone: Rows that were made again because they were too old.
        dropped: Rows that were dropped because they were too old.
        made: For each stage, rows that went through it.
        worked: For each stage, the sum of its calls' seconds.
        busy: For each stage, the share of its data ranks' time in which it ran.
        waiting: For each stage, the share of their time in which they had no work of any stage.
        training: Share of the time in which the loop worked on a batch.
        reading: Share of the time in which the loop read the source.
    """

    seconds: float
    rows: int
    batches: int
    versions: int
    lag: Counter[int]
    redone: int
    dropped: int
    made: Sequence[int]
    worked: Sequence[float]
    busy: Sequence[float]
    waiting: Sequence[float]
    training: float
    reading: float

    @property
    def rows_per_second(self) -> float:
        """Rows that the loop was given, by the time."""
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def worst_lag(self) -> int:
        """The largest lag of a row."""
        return max(self.lag, default=0)
