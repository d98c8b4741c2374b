"""The order of samples in shards: one sample of each open shard in turn, in a bounded window of shards.

Shuffled, the shards come in another order in each epoch, and the rows of each in another order within windows.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

import numpy as np

from twinkle_data.order.permutation import ALGORITHM, Permutation, derive
from twinkle_data.order.shard_rows import ROWS, permuted, window_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# Shards in turn at a time. A process can hold them open under a limit of 256 descriptors, macOS's default: one that
# has to open a shard again for each sample takes a time that grows with the square of the shard's length.
WINDOW: Final = 128


def algorithm_of(count: int, *, shuffle: bool) -> str:
    """Name and version of the order of `count` shards; up to the window, all of them take turns."""
    version = "shards-v1" if count <= WINDOW else f"shards-v2-window{WINDOW}"
    version += f"-rows{ROWS}" if shuffle else ""
    return f"{version}+{ALGORITHM if shuffle else 'sequential-v1'}"


def shards_in_order(count: int, seed: int, epoch: int, *, shuffle: bool) -> NDArray[np.int64]:
    """The shards in the order in which they enter the window in an epoch."""
    if not shuffle:
        return np.arange(count)
    return Permutation(count, derive(seed, 3), epoch).block(0, count).astype(np.int64)


class ShardedOrder:
    """The order of shards of known lengths.

    Args:
        lengths: Samples of each shard.
        seed: Seed of the order.
        shuffle: Use a new order of the shards, and of the rows in them, in each epoch.
    """

    def __init__(self, lengths: Sequence[int], seed: int, *, shuffle: bool) -> None:
        self.algorithm = algorithm_of(len(lengths), shuffle=shuffle)
        self._lengths = np.array(lengths, dtype=np.int64)
        self._starts = np.concatenate(([0], np.cumsum(self._lengths)))[:-1]
        self.length = int(self._lengths.sum())
        self._seed = seed
        self._shuffle = shuffle
        self._epoch: tuple[int, _Slots] | None = None

    def take(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The indices at the given positions of an epoch."""
        if self._epoch is None or self._epoch[0] != epoch:
            turn = shards_in_order(len(self._lengths), self._seed, epoch, shuffle=self._shuffle)
            self._epoch = epoch, _Slots(turn, self._lengths[turn])
        shards, offsets = self._epoch[1].take(positions)
        if self._shuffle and len(positions):
            window = window_of(min(len(self._lengths), WINDOW))
            offsets = permuted(self._seed, epoch, shards, offsets, self._lengths, window)
        found: NDArray[np.int64] = self._starts[shards] + offsets
        return found


class _Slots:
    """The window's places: each gives one sample in turn, from one shard after the other.

    The next shard takes the place that is free first, and of these the first one in the window.

    Args:
        shards: The shards in their order.
        lengths: The length of each, in the same order.
    """

    def __init__(self, shards: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        chains = [[number] for number in range(min(WINDOW, len(lengths)))]
        free = [(int(lengths[slot]), slot) for slot in range(len(chains))]
        heapq.heapify(free)
        for number in range(len(chains), len(lengths)):
            at, slot = free[0]
            chains[slot].append(number)
            heapq.heapreplace(free, (at + int(lengths[number]), slot))
        chained = np.array([number for chain in chains for number in chain], dtype=np.int64)
        self._shards = shards[chained]
        # All samples in a row, slot after slot, and in a slot shard after shard.
        self._starts = np.concatenate(([0], np.cumsum(lengths[chained])))
        lasts = np.cumsum([len(chain) for chain in chains])
        self._slot_starts = self._starts[np.concatenate(([0], lasts[:-1]))]
        self._totals = self._starts[lasts] - self._slot_starts
        # The slots in turn change only at an offset that is the total of some slot.
        self._levels = np.unique(np.concatenate(([0], self._totals)))
        running = np.array([np.count_nonzero(self._totals > level) for level in self._levels[:-1]], dtype=np.int64)
        self._begins = np.concatenate(([0], np.cumsum(np.diff(self._levels) * running)))

    def take(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The shard and the offset in it of each position."""
        places = np.empty(len(positions), dtype=np.int64)
        levels = np.searchsorted(self._begins, positions, side="right") - 1
        for level in np.unique(levels).tolist():
            chosen = np.flatnonzero(levels == level)
            slots = np.flatnonzero(self._totals > self._levels[level])
            rounds, turns = np.divmod(positions[chosen] - self._begins[level], len(slots))
            places[chosen] = self._slot_starts[slots[turns]] + self._levels[level] + rounds
        links = np.searchsorted(self._starts, places, side="right") - 1
        return self._shards[links], places - self._starts[links]
