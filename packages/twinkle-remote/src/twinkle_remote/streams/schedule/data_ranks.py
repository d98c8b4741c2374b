"""The data ranks of a component, by how busy they are."""

from __future__ import annotations


class DataRanks:
    """Gives work to the data rank that has the least; each event costs the same at any number of ranks.

    Args:
        count: Number of data ranks.
        at_once: ChunkTable that each may have at a time.
    """

    def __init__(self, count: int, at_once: int) -> None:
        self._busy = [0] * count
        self._usable = bytearray(b"\1" * count)
        self._at_once = at_once
        self._by_load: list[dict[int, None]] = [{} for _ in range(at_once)]
        self._by_load[0] = dict.fromkeys(range(count))
        self._least = 0

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
        return len(self._busy)

    def grow(self, count: int) -> None:
        """Add ranks, which are not usable yet."""
        self._busy.extend([0] * count)
        self._usable.extend(bytes(count))

    def busy(self, rank: int) -> int:
        """ChunkTable that a rank has."""
        return self._busy[rank]

    def next(self) -> int | None:
        """The rank that a chunk would go to: the least busy one, of these the one that was given work longest ago."""
        while self._least < self._at_once and not self._by_load[self._least]:
            self._least += 1
        return next(iter(self._by_load[self._least])) if self._least < self._at_once else None

    def take(self, rank: int) -> None:
        """Count one more chunk on a rank."""
        self._move(rank, 1)

    def give_back(self, rank: int) -> None:
        """Count one chunk less on a rank."""
        self._move(rank, -1)

    def set_usable(self, rank: int, usable: bool) -> None:
        """Give a rank no more work, or work again."""
        self._move(rank, 0, usable=usable)

    def _move(self, rank: int, by: int, usable: bool | None = None) -> None:
        if self._busy[rank] < self._at_once:
            self._by_load[self._busy[rank]].pop(rank, None)
        self._busy[rank] += by
        if usable is not None:
            self._usable[rank] = usable
        load = self._busy[rank]
        if self._usable[rank] and load < self._at_once:
            self._by_load[load][rank] = None
            self._least = min(self._least, load)
