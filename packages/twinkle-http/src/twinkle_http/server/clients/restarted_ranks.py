"""Ranks that are other workers than a client knows: a call for one of the earlier workers must not reach them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class RestartedError(Exception):
    """A call for workers that have ended.

    Args:
        ranks: The ranks that other workers have now, or will have.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        super().__init__(f"ranks {list(ranks)} are other workers than the caller knows")
        self.ranks = ranks


class RestartedRanks:
    """The ranks whose workers were restarted, and the numbers of the updates that report it to one client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: set[tuple[str, int]] = set()
        self._told: dict[tuple[str, int], int] = {}

    def begin(self, group: str, ranks: Sequence[int]) -> None:
        """Other workers are about to have these ranks."""
        with self._lock:
            self._under_way.update((group, rank) for rank in ranks)

    def give_up(self, group: str, ranks: Sequence[int]) -> None:
        """They did not start."""
        with self._lock:
            self._under_way.difference_update((group, rank) for rank in ranks)

    def told(self, group: str, ranks: Sequence[int], number: int) -> None:
        """The update with this number reports that they have started."""
        with self._lock:
            self._under_way.difference_update((group, rank) for rank in ranks)
            self._told.update({(group, rank): number for rank in ranks})

    def check(self, group: str, ranks: Sequence[int], read: int) -> None:
        """Check that the client knows the workers of some ranks.

        Args:
            group: Their group.
            ranks: The ranks.
            read: Number of the last update that the client had read when it made the call.

        Raises:
            RestartedError: It does not.
        """
        with self._lock:
            keys = [(group, rank) for rank in ranks]
            unknown = [key[1] for key in keys if key in self._under_way or self._told.get(key, 0) > read]
        if unknown:
            raise RestartedError(unknown)
