"""The metrics of the outcomes of one call, by rank, in two arrays."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_remote.protocol.messages import Outcome

_COLUMNS = 5


class ReplyFigures:
    """Fetched and produced bytes, start, duration and fetching of each rank that has answered."""

    __slots__ = ("_columns", "_figures", "_ranks")

    def __init__(self) -> None:
        self._ranks = array("i")
        self._figures = array("d")
        self._columns: dict[int, Mapping[str, int]] | None = None

    def __len__(self) -> int:
        return len(self._ranks)

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Add the metrics of several outcomes."""
        for one in outcomes:
            self._figures.extend((one.fetched, one.produced, one.started, one.seconds, one.fetch_seconds))
        self._ranks.extend([one.rank for one in outcomes])
        for one in outcomes:
            if one.fetched_columns:
                self._columns = {} if self._columns is None else self._columns
                self._columns[one.rank] = one.fetched_columns

    @property
    def fetched_columns(self) -> Mapping[int, Mapping[str, int]]:
        """The fetched bytes of each column, for each rank that has fetched some."""
        return self._columns or {}

    def column(self, index: int) -> Mapping[int, float]:
        """One metric by rank.

        Args:
            index: 0 for fetched bytes, 1 for produced bytes, 2 for the start, 3 for the duration, 4 for fetching.
        """
        return dict(zip(self._ranks, self._figures[index::_COLUMNS], strict=True))

    def whole(self, index: int) -> Mapping[int, int]:
        """One metric by rank, as whole numbers; see `column`."""
        return {rank: int(value) for rank, value in self.column(index).items()}
