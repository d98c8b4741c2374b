"""What a stream tells: of the rows of a batch, of rows that were set aside, and of its own figures."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class RowsInfo:
    """The rows of a batch, one entry each.

    Attributes:
        begun: Version of the weights when the first stage began.
        ended: Version when the last stage was done; larger than `begun` where the row straddles a version.
        lag: Version at delivery less `begun`.
        indices: Index in the dataset; the number in the epoch where the source does not tell.
        epoch: Epoch of the batch, from 0.
    """

    begun: Sequence[int]
    ended: Sequence[int]
    lag: Sequence[int]
    indices: Sequence[int]
    epoch: int


@dataclass(frozen=True, slots=True)
class SetAside:
    """A row for which a stage raised at each attempt.

    Attributes:
        index: Index in the dataset; the number in the epoch where the source does not tell.
        epoch: Epoch of the row.
        error: The type and the text of the last error.
    """

    index: int
    epoch: int
    error: str


@dataclass(frozen=True, slots=True)
class StreamStats:
    """Figures of a stream since it was made.

    Attributes:
        rows: Rows that the loop was given.
        rows_per_second: The same by the seconds since the first batch was asked for.
        busy: For each stage, the share of its data ranks' time that they worked, in [0, 1].
        waiting: Share of the loop's time that it waited for a batch, in [0, 1].
        lag: Rows by their lag in versions.
        worst_lag: The largest lag.
        redone: Rows that were made again: too old, or lost with a worker.
        dropped: Rows that were too old under `stale="drop"`.
        set_aside: Rows for which a stage raised at each attempt.
    """

    rows: int = 0
    rows_per_second: float = 0.0
    busy: Mapping[str, float] = field(default_factory=dict)
    waiting: float = 0.0
    lag: Counter[int] = field(default_factory=Counter)
    worst_lag: int = 0
    redone: int = 0
    dropped: int = 0
    set_aside: int = 0
