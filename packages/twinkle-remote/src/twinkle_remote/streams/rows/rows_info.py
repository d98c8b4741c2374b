"""Info of the rows of a batch, and of the rows that were set aside."""

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
        ended: Version when the last stage was done; larger than `begun` if a version was published meanwhile.
        lag: Version at delivery minus `begun`.
        indices: Index in the dataset; the number in the epoch if the source does not report indices.
        epoch: Epoch of the batch, from 0.
    """

    begun: Sequence[int]
    ended: Sequence[int]
    lag: Sequence[int]
    indices: Sequence[int]
    epoch: int

    @property
    def valid(self) -> Sequence[bool]:
        """True for each row: a stream delivers no fillers, and may be the source of another one."""
        return [True] * len(self.indices)


def named_rows(indices: Sequence[int], epoch: int) -> str:
    """The name of rows in messages."""
    shown = ", ".join(map(str, indices[:4])) + (", ..." if len(indices) > 4 else "")
    return f"row {shown} of epoch {epoch}"


@dataclass(frozen=True, slots=True)
class QuarantinedRow:
    """A row for which a stage raised at each attempt.

    Attributes:
        index: Index in the dataset; the number in the epoch where the source does not report it.
        epoch: Epoch of the row.
        error: The type and the text of the last error.
    """

    index: int
    epoch: int
    error: str
