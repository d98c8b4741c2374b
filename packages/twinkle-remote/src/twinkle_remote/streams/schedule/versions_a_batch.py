"""The number of versions that come for each batch, and of batches until a row is used that is begun now."""

from __future__ import annotations

from collections import deque

_REMEMBERED = 64
"""Batches from which the number of versions is learned."""


class VersionsABatch:
    """Learns how many versions come between two batches: the most that any of the latest 64 had, and at least one.

    Versions that the loop publishes while it uses a batch are expected again. Those that come while it waits, from
    outside of the loop, are expected before the next batch, but never so that nothing could be begun.

    Args:
        max_lag: The bound of the lag in versions, or None.

    Attributes:
        most: Versions between two batches.
        is_asked: Whether the loop waits for a batch.
        in_use: Whether the loop uses a batch.
    """

    def __init__(self, max_lag: int | None) -> None:
        self._max_lag = max_lag
        self._seen: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED)
        self._used = self._waited = 0  # versions since the latest batch: while it was used, and while the next is made
        self.most = 1
        self._most_waited = 0
        self.is_asked = self.in_use = False

    def ask(self) -> None:
        """The loop is through with its batch, and waits for the next one."""
        if not self.in_use and not self.is_asked:
            self._used = 0  # before the first batch
        self.is_asked, self.in_use = True, False
        self._learn()

    def delivered(self) -> None:
        """The loop was given a batch."""
        self._seen.append((self._used, self._waited))
        self._used = self._waited = 0
        self.is_asked, self.in_use = False, True
        self._learn()

    def published(self, versions: int) -> None:
        """Versions were published."""
        if self.is_asked:
            self._waited += versions
        else:
            self._used += versions
        self._learn()

    def pause(self) -> None:
        """The loop neither uses a batch nor waits for one: an epoch is over."""
        self._used = self._waited = 0
        self.is_asked = self.in_use = False
        self._learn()

    def _learn(self) -> None:
        now = (self._used, self._waited) if self.in_use or self.is_asked else (0, 0)
        seen = [*self._seen, now]
        self.most = max(1, *(used + waited for used, waited in seen))
        self._most_waited = max(waited for _, waited in seen)

    def batches_of_new_rows(self) -> int:
        """In how many of the next batches a row may be used that is begun now; needs a bound of the lag.

        0 while the loop uses a batch, and publishes more than `max_lag` versions before it asks again.
        """
        assert self._max_lag is not None, "without a bound any batch"
        if self.is_asked:
            return max(1, (self._max_lag - max(0, self._most_waited - self._waited)) // self.most + 1)
        before = max(0, self.most - self._used) if self.in_use else 0
        return (self._max_lag - before) // self.most + 1 if before <= self._max_lag else 0

    def batches_when_asked(self) -> int:
        """The most that `batches_of_new_rows` can be when the loop asks."""
        assert self._max_lag is not None, "without a bound any batch"
        return self._max_lag // self.most + 1
