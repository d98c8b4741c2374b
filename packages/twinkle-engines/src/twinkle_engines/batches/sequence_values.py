"""Values by sequence, in rows: what a model computes for each sequence of a batch, divided as the batch is."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any, SupportsIndex

from torch import Tensor

from twinkle_remote.values import register_splitter, register_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class SequenceValues(list[Tensor]):
    """A list with a tensor for each sequence; its rows are those of the batch, of one or more sequences each.

    Args:
        values: One for each sequence.
        counts: Sequences of each row, at or above 0.

    Raises:
        ValueError: The counts do not add up to the sequences.
    """

    def __init__(self, values: Iterable[Tensor] = (), counts: Sequence[int] | None = None) -> None:
        super().__init__(values)
        self.counts = [1] * len(self) if counts is None else list(counts)
        if sum(self.counts) != len(self) or min(self.counts, default=0) < 0:
            raise ValueError(f"counts={self.counts} add up to {sum(self.counts)} sequences, but there are {len(self)}")

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return type(self), (list(self), self.counts)

    def rows(self, numbers: Sequence[int]) -> SequenceValues:
        """Rows of these numbers, at or above 0, in any order."""
        ends = [0, *accumulate(self.counts)]
        values = [value for row in numbers for value in self[ends[row] : ends[row + 1]]]
        return SequenceValues(values, [self.counts[row] for row in numbers])


class SequenceValuesSplitter:
    """Cuts and joins values by the rows of their batch."""

    def length(self, value: SequenceValues) -> int:
        """Number of rows."""
        return len(value.counts)

    def slice(self, value: SequenceValues, start: int, stop: int) -> SequenceValues:
        """Rows [start, stop)."""
        return value.rows(range(start, stop))

    def take(self, value: SequenceValues, rows: Sequence[int]) -> SequenceValues:
        """Rows of these numbers."""
        return value.rows(rows)

    def concat(self, values: Sequence[SequenceValues]) -> SequenceValues:
        """All rows, one after the other."""
        return SequenceValues([one for value in values for one in value], [n for value in values for n in value.counts])


def _made(plain: Any) -> SequenceValues:
    if not isinstance(plain, list) or len(plain) != 2 or not all(isinstance(part, list) for part in plain):
        raise ValueError("values by sequence are a list of tensors, and the sequences of each row")
    values, counts = plain
    if not all(isinstance(one, Tensor) for one in values) or not all(type(n) is int for n in counts):
        raise ValueError("values by sequence are tensors, and whole numbers count the sequences of each row")
    return SequenceValues(values, counts)


register_splitter(SequenceValues, SequenceValuesSplitter())
register_type(SequenceValues, to_plain=lambda value: [list(value), value.counts], from_plain=_made)
