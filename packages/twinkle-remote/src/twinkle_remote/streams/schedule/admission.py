"""The number of rows that may be begun: the room ahead of the loop, and the pacing by versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twinkle_remote.streams.schedule.versions_a_batch import VersionsABatch


@dataclass(slots=True)
class Admission:
    """Counts rows from their admission to their delivery.

    With `max_lag`, no row is admitted that could not be used within so many versions by the counts of rows alone
    (AReaL's capacity rule: accepted + running <= (max_lag + version + 1) x batch, where one version is published for
    each batch). A batch counts as used when the loop asks for the next one or has published what it does for each, so a
    loop that does not publish at each step does not stall.

    Attributes:
        ahead: Rows beyond those that the loop uses.
        max_lag: Bound of the lag in versions, or None.
        batch: Rows of a delivered batch; of the largest one that was read where the source's batches are kept.
        whole: Whether the source's batches are kept: then these are paced, not their rows.
        versions: How many versions come for each batch.
        unused: Rows that are admitted and not delivered.
    """

    ahead: int
    max_lag: int | None
    batch: int
    whole: bool
    versions: VersionsABatch
    unused: int = 0

    def room(self) -> int:
        """Rows that may be admitted now."""
        room = self.ahead + (self.batch if self.versions.is_asked else 0) - self.unused
        if self.max_lag is not None and not self.whole:
            room = min(room, self.versions.batches_of_new_rows() * self.batch - self.unused)
        return max(0, room)

    def most(self) -> int:
        """Rows that can be admitted until the loop has taken its batch and asks again."""
        most = self.ahead + self.batch
        if self.max_lag is not None and not self.whole:
            most = min(most, self.versions.batches_when_asked() * self.batch)
        return most

    def takes_batch(self, open_batches: int) -> bool:
        """Whether another batch of the source may be begun.

        Args:
            open_batches: Batches of the source that were read and not delivered.
        """
        if self.max_lag is None or not self.whole:
            return True
        return open_batches < self.versions.batches_of_new_rows()
