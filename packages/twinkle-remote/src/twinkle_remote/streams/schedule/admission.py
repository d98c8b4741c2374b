"""How many more rows may be begun: the room ahead of the loop, and the pacing by versions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Admission:
    """Counts rows from their admission until the loop is through with them.

    With `max_lag`, no row is admitted that could not be used within so many versions by the counts of rows alone
    (AReaL's capacity rule: accepted + running <= (max_lag + version + 1) x batch). A batch counts as used when the loop
    asks for the next one or a version is published, so a loop that does not publish at each step does not stall.

    Attributes:
        ahead: Rows beyond those that the loop uses.
        max_lag: Bound of the lag in versions, or None.
        batch: Rows of a delivered batch; of the largest one that was read where the source's batches are kept.
        whole: Whether the source's batches are kept: then these are paced, not their rows.
        unused: Rows that are admitted and not delivered.
        in_use: Rows that are delivered, and that the loop may still work on.
        asked: Whether the loop waits for a batch.
    """

    ahead: int
    max_lag: int | None
    batch: int
    whole: bool
    unused: int = 0
    in_use: int = 0
    asked: bool = False

    def room(self) -> int:
        """Rows that may be admitted now."""
        room = self.ahead + (self.batch if self.asked else 0) - self.unused
        if self.max_lag is not None and not self.whole:
            room = min(room, (self.max_lag + 1) * self.batch - self.unused - self.in_use)
        return max(0, room)

    def most(self) -> int:
        """Rows that can be admitted until the loop has taken its batch and asks again."""
        ahead = self.ahead
        if self.max_lag is not None and not self.whole:
            ahead = min(ahead, self.max_lag * self.batch)
        return ahead + self.batch

    def takes_batch(self, open_batches: int) -> bool:
        """Whether another batch of the source may be begun.

        Args:
            open_batches: Batches of the source that were read and not delivered.
        """
        if self.max_lag is None or not self.whole:
            return True
        return open_batches + (self.in_use > 0) <= self.max_lag

    def delivered(self, rows: int) -> None:
        """The loop was given rows."""
        self.unused -= rows
        self.in_use += rows
        self.asked = False

    def used(self) -> None:
        """The loop is through with all rows that it was given."""
        self.in_use = 0
