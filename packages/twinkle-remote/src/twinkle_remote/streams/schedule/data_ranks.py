"""The data ranks of a component, by how busy they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class DataRanks:
    """Gives work to the data rank that has the least; each event costs the same at any number of ranks.

    A lane is a kind of calls. The calls of one lane are counted together, separately from other lanes.

    Args:
        count: Number of data ranks.
        lanes: For each lane, calls that each may have at a time.
    """

    def __init__(self, count: int, lanes: Sequence[int]) -> None:
        self._usable = bytearray(b"\1" * count)
        self._lanes = [_Lane(count, calls) for calls in lanes]

    @property
    def usable(self) -> int:
        """Number of ranks that may be given work."""
        return sum(self._usable)

    def is_usable(self, rank: int) -> bool:
        """Whether a rank may be given work."""
        return bool(self._usable[rank])

    @property
    def count(self) -> int:
        """Number of ranks."""
        return len(self._usable)

    def grow(self, count: int) -> None:
        """Add ranks, which are not usable yet."""
        self._usable.extend(bytes(count))
        for lane in self._lanes:
            lane.grow(count)

    def busy(self, rank: int) -> int:
        """Calls that a rank has."""
        return sum(lane.busy(rank) for lane in self._lanes)

    def least_busy(self, lane: int) -> int:
        """The number of ranks with the least calls of a lane, of those that have room for one more."""
        return self._lanes[lane].least_busy()

    def take(self, lane: int) -> int:
        """Count one more call on the least busy rank, of these on the one that was given work longest ago.

        Returns:
            The rank; some rank must have room.
        """
        return self._lanes[lane].take()

    def give_back(self, rank: int, lane: int) -> None:
        """Count one call less on a rank."""
        self._lanes[lane].move(rank, -1, usable=self.is_usable(rank))

    def set_usable(self, rank: int, usable: bool) -> None:
        """Give a rank no more work, or work again."""
        self._usable[rank] = usable
        for lane in self._lanes:
            lane.move(rank, 0, usable=usable)


class _Lane:
    """The calls of one kind."""

    def __init__(self, count: int, calls: int) -> None:
        self._busy = [0] * count
        self._calls = calls
        self._by_load: list[dict[int, None]] = [{} for _ in range(calls)]
        self._by_load[0] = dict.fromkeys(range(count))
        self._least = 0

    def grow(self, count: int) -> None:
        self._busy.extend([0] * count)

    def busy(self, rank: int) -> int:
        return self._busy[rank]

    def least_busy(self) -> int:
        while self._least < self._calls and not self._by_load[self._least]:
            self._least += 1
        return len(self._by_load[self._least]) if self._least < self._calls else 0

    def take(self) -> int:
        found = self.least_busy()
        assert found, "no rank has room"
        rank = next(iter(self._by_load[self._least]))
        self.move(rank, 1, usable=True)
        return rank

    def move(self, rank: int, by: int, *, usable: bool) -> None:
        if self._busy[rank] < self._calls:
            self._by_load[self._busy[rank]].pop(rank, None)
        self._busy[rank] += by
        load = self._busy[rank]
        if usable and load < self._calls:
            self._by_load[load][rank] = None
            self._least = min(self._least, load)
