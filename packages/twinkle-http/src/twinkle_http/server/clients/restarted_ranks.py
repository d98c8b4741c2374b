"""Ranks whose workers were restarted: a call for an earlier worker must not reach the new one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class RestartedError(Exception):
    """A call for workers that have ended.

    Args:
        ranks: The ranks whose workers were restarted, or are being restarted.
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
        """Record that the workers of these ranks are being restarted."""
        with self._lock:
            self._under_way.update((group, rank) for rank in ranks)

    def give_up(self, group: str, ranks: Sequence[int]) -> None:
        """Record that they did not start."""
        with self._lock:
            self._under_way.difference_update((group, rank) for rank in ranks)

    def reported(self, group: str, ranks: Sequence[int], number: int) -> None:
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
