"""What a stream tells of rows: of those of a batch, and of those that were set aside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


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
