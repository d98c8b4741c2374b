"""The data ranks of a simulated pool: when each is free."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import repeat


class Servers:
    """Runs calls on data ranks, each `width` of them at the same time; the others wait their turn.

    Args:
        width: Calls at the same time, at or above 1.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._free: dict[int, list[float]] = {}

    def run(self, rank: int, now: float, seconds: float) -> float:
        """Begin a call on a rank, when it may; returns its end."""
        free = self._free.setdefault(rank, [])
        while free and free[0] <= now:
            heappop(free)
        began = now
        for _ in repeat(None, len(free) + 1 - self._width):
            began = heappop(free)
        end = began + seconds
        heappush(free, end)
        return end
