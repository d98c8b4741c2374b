"""Reading samples one by one: their randomness, and what becomes of those that cannot be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_data.source import Source


@dataclass(slots=True)
class SampleRows:
    """The rows that were read.

    Attributes:
        samples: One for each index asked for.
        indices: The index that each row shows.
        masked: Rows that stand for a sample that could not be read.
        bad: Indices of the samples that could not be read.
    """

    samples: list[Any]
    indices: list[int]
    masked: tuple[int, ...] = ()
    bad: tuple[int, ...] = ()


class Sampling:
    """Reads samples of a source.

    Args:
        source: Where they are.
    """

    def __init__(self, source: Source) -> None:
        self.source = source

    def read(self, epoch: int, indices: Sequence[int]) -> SampleRows:
        """Read the given samples."""
        return SampleRows(self.source.read_many(indices), list(indices))
