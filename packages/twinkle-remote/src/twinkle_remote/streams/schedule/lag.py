"""The rules of lag: which rows are too old, what becomes of them, and which ones a batch must hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twinkle_remote.streams.options import Stale
    from twinkle_remote.streams.schedule.versions_a_batch import VersionsABatch

Fate = Literal["use", "redo", "drop"]


@dataclass(frozen=True, slots=True)
class LagRule:
    """The bound of the lag and the rule for rows beyond it.

    A held row has a version at which it is due: batches are put together so that it is delivered until then.

    Attributes:
        max_lag: The bound in versions, or None.
        stale: The rule.
        versions: How many versions come for each batch.
    """

    max_lag: int | None
    stale: Stale
    versions: VersionsABatch

    @property
    def bounds(self) -> bool:
        """Whether there is a bound."""
        return self.max_lag is not None

    @property
    def is_hard(self) -> bool:
        """Whether no row is begun that could not be delivered in time."""
        return self.max_lag is not None and self.stale == "wait"

    def fate(self, begun: int, version: int, overtaken: int) -> Fate:
        """The fate of a row; one that is made again and overtaken once more is used: batches wait for it.

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

    def is_beyond(self, begun: int, version: int) -> bool:
        """Whether a row that is delivered is older than the bound, though the rule was to make it again."""
        late = self.max_lag is not None and begun + self.max_lag < version
        return late and self.stale in ("wait", "redo")

    def holds(self, overtaken: int) -> bool:
        """Whether batches wait for a row so that it is not overtaken.

        Args:
            overtaken: How often the row was made again because it was too old.
        """
        return self.max_lag is not None and (self.stale == "wait" or (self.stale == "redo" and overtaken > 0))

    def due(self, begun: int, overtaken: int) -> int:
        """The version at which a held row is delivered at the latest.

        Under "wait" a row that was made again is delivered in the batch that the loop waits for when it is begun.

        Args:
            begun: Version under which it was begun.
            overtaken: How often it was made again because it was too old.
        """
        return begun if self.stale == "wait" and overtaken else begun + (self.max_lag or 0)

    def in_time(self, dues: Iterable[tuple[int, int, int]], version: int, capacity: int) -> bool:
        """Whether a batch that is delivered now leaves every held row in time for its bound.

        The batch takes first the finished rows that are due first. By Hall's condition for unit jobs with deadlines,
        rows with n batches left must be no more than n batches hold.

        Args:
            dues: For each version at which held rows are due: the version, the rows that are not delivered, and those
                of them that are finished.
            version: The version now.
            capacity: Rows of a batch.
        """
        open_rows = finished = 0
        for due, there, done in sorted(dues):
            open_rows += there
            finished += done
            later = self._batches_after_this(due, version) * capacity
            if min(finished, capacity) < min(open_rows - later, capacity):
                return False
        return True

    def room_in_this_batch(self, dues: Iterable[tuple[int, int, int]], version: int, capacity: int) -> int:
        """Rows that the next batch can hold besides the held ones, by the same condition; as `in_time`."""
        room, open_rows = capacity, 0
        for due, there, _ in sorted(dues):
            open_rows += there
            room = min(room, (self._batches_after_this(due, version) + 1) * capacity - open_rows)
        return max(room, 0)

    def _batches_after_this(self, due: int, version: int) -> int:
        return max(0, (due - version) // self.versions.most)
