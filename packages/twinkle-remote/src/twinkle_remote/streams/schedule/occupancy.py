"""The time for which data ranks had work."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class Occupancy:
    """Sums the time in which each data rank had at least one chunk."""

    def __init__(self) -> None:
        self._chunks: dict[int, int] = {}
        self._since: dict[int, float] = {}
        self._over = 0.0

    def take(self, rank: int, now: float) -> None:
        """A rank is given a chunk."""
        if not self._chunks.get(rank):
            self._since[rank] = now
        self._chunks[rank] = self._chunks.get(rank, 0) + 1

    def give_back(self, rank: int, now: float) -> None:
        """A rank is through with a chunk; after `stop` it has none."""
        left = self._chunks.pop(rank, 0) - 1
        if left > 0:
            self._chunks[rank] = left
        elif rank in self._since:
            self._over += now - self._since.pop(rank)

    def add(self, seconds: float) -> None:
        """Work that is known only after its end."""
        self._over += seconds

    def stop(self, now: float) -> None:
        """The work of all ranks is abandoned."""
        self._over = self.seconds(now)
        self._chunks.clear()
        self._since.clear()

    def seconds(self, now: float) -> float:
        """The sum of all ranks until now."""
        return self._over + sum(now - since for since in self._since.values())


class Occupancies:
    """The same for each stage and for each pool of workers.

    Args:
        stages: The pool of each stage.
    """

    def __init__(self, stages: Sequence[int]) -> None:
        pools = {pool: Occupancy() for pool in stages}
        self._stages = [Occupancy() for _ in stages]
        self._pools = [pools[pool] for pool in stages]
        self._all = (*self._stages, *pools.values())

    def take(self, stage: int, rank: int, now: float) -> None:
        """A rank is given a chunk of a stage."""
        self._stages[stage].take(rank, now)
        self._pools[stage].take(rank, now)

    def give_back(self, stage: int, rank: int, now: float) -> None:
        """A rank is through with a chunk of a stage."""
        self._stages[stage].give_back(rank, now)
        self._pools[stage].give_back(rank, now)

    def add(self, stage: int, seconds: float) -> None:
        """Work that is known only after its end."""
        self._stages[stage].add(seconds)
        self._pools[stage].add(seconds)

    def stop(self, now: float) -> None:
        """The work of all ranks is abandoned."""
        for one in self._all:
            one.stop(now)

    def busy(self, stage: int, ran: float, now: float) -> float:
        """Seconds in which ranks ran a stage: calls side by side count once, and chunks that wait on a rank do not.

        Args:
            stage: The stage.
            ran: The sum of its calls' seconds.
            now: The time now.
        """
        return min(ran, self._stages[stage].seconds(now))

    def of_pool(self, stage: int, now: float) -> float:
        """Seconds in which ranks of a stage's pool had work of any stage."""
        return self._pools[stage].seconds(now)
