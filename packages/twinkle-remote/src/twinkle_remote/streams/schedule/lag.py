"""The rules of lag: which rows are too old, what becomes of them, and which ones a batch must hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twinkle_remote.streams.rules import Stale

Fate = Literal["use", "redo", "drop"]


@dataclass(frozen=True, slots=True)
class LagRule:
    """The bound of the lag and the rule for rows beyond it.

    Attributes:
        max_lag: The bound in versions, or None.
        stale: The rule.
    """

    max_lag: int | None
    stale: Stale

    def fate(self, begun: int, version: int, overtaken: int) -> Fate:
        """What becomes of a row; one that is made again and overtaken once more is used: batches wait for it.

        Args:
            begun: Version under which it was begun; -1 if it was not.
            version: The version now.
            overtaken: How often it was made again because it was too old.
        """
        if self.max_lag is None or begun < 0 or begun + self.max_lag >= version or self.stale == "use":
            return "use"
        if self.stale == "drop":
            return "drop"
        return "use" if overtaken else "redo"

    def holds(self, overtaken: int) -> bool:
        """Whether batches wait for a row so that it is not overtaken.

        Args:
            overtaken: How often the row was made again because it was too old.
        """
        return self.max_lag is not None and (self.stale == "wait" or (self.stale == "redo" and overtaken > 0))

    def in_time(self, ages: Iterable[tuple[int, int, int]], version: int, capacity: int) -> bool:
        """Whether a batch that is delivered now leaves every held row in time for its bound.

        The batch takes the oldest finished rows first. By Hall's condition for unit jobs with deadlines, rows with n
        batches left must be no more than n batches hold.

        Args:
            ages: For each version under which held rows were begun: the version, the rows that are not delivered, and
                those of them that are finished.
            version: The version now.
            capacity: Rows of a batch.
        """
        if self.max_lag is None:
            return True
        open_rows = finished = 0
        for begun, there, done in sorted(ages):
            open_rows += there
            finished += done
            later = max(0, begun + self.max_lag - version) * capacity
            if min(finished, capacity) < min(open_rows - later, capacity):
                return False
        return True
