"""Shards of unknown lengths as a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from twinkle_data.order.shard_rows import permutations, window_of
from twinkle_data.reading.randomness import seed_again, seed_for, seed_this
from twinkle_data.reading.written_again import WrittenAgain
from twinkle_data.sources.open_shards import OpenShards, ShardEndedError
from twinkle_data.sources.sharded_order import WINDOW, algorithm_of, shards_in_order

_ROW = 0x726F77

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twinkle_data.sources.shards import Shards


class ShardStream:
    """Shards of unknown lengths; takes one sample of each shard of the window in turn.

    Args:
        shards: The shards.
        seed: Seed of the order.
        shuffle: Use a new order of the shards, and of the rows in them, in each epoch.
    """

    resumable = True

    def __init__(self, shards: Shards, seed: int, *, shuffle: bool) -> None:
        self.algorithm = algorithm_of(shards.count, shuffle=shuffle)
        self.dataset = shards
        self._seed = seed
        self._shuffle = shuffle
        self._open = OpenShards(shards.start, seed_this)
        self._window = window_of(min(shards.count, WINDOW))
        self._epoch = 0
        self._written_again = WrittenAgain()
        self._rows: dict[int, list[Any]] = {}  # of a shuffled shard: the rows of its window, in their order
        self._offsets: list[int] = []
        self._order: list[int] = []
        self._entered = 0  # shards of the order that have entered the window
        self._running: list[int] = []
        self._turn = 0

    @property
    def fingerprint(self) -> str:
        """That of the shards."""
        return self.dataset.fingerprint

    def begin(self, epoch: int, state: Any) -> Iterator[Any]:
        """Iterate over an epoch from its start, or from a state on."""
        self._open.close()
        self._rows.clear()
        self._epoch = epoch
        count = self.dataset.count
        self._order = shards_in_order(count, self._seed, epoch, shuffle=self._shuffle).tolist()
        if state is None:
            self._entered = min(WINDOW, count)
            self._running = self._order[: self._entered]
            self._offsets, self._turn = [0] * count, 0
        else:
            self._running, self._offsets = list(state["running"]), list(state["offsets"])
            self._turn, self._entered = state["turn"], state.get("entered", count)
        return self._go()

    def _go(self) -> Iterator[Any]:
        while self._running:
            self._turn %= len(self._running)
            shard = self._running[self._turn]
            try:
                sample = self._take(shard, self._offsets[shard])
            except ShardEndedError:
                self._replace()
                continue
            self._offsets[shard] += 1
            self._turn += 1
            yield sample

    def _take(self, shard: int, offset: int) -> Any:
        if not self._shuffle:
            return self._open.take(shard, offset)
        within = offset % self._window
        if shard not in self._rows or not within:
            self._rows[shard] = self._read_window(shard, offset - within)
        rows = self._rows[shard]
        if within >= len(rows):
            del self._rows[shard]
            raise ShardEndedError(offset)
        sample, rows[within] = rows[within], None
        return sample

    def _read_window(self, shard: int, start: int) -> list[Any]:
        """The rows of a window in their order; each draws from its own randomness, whenever it is read."""
        rows: list[Any] = []
        self._written_again.begin()
        try:
            for offset in range(start, start + self._window):
                seed_for(_ROW, shard, offset)
                rows.append(self._open.take(shard, offset))
                self._written_again.keep(rows[0])
        except ShardEndedError:
            pass
        finally:
            seed_again()
        if not rows:
            return rows
        self._written_again.check(rows[1:], f"shard {shard}")
        self._written_again.end()
        window = np.array([start // self._window])
        order = permutations(self._seed, self._epoch, np.array([shard]), window, np.array([len(rows)]))[0]
        return [rows[row] for row in order.tolist()]

    def _replace(self) -> None:
        """Let the next shard take the place of the one that has ended."""
        if self._entered == len(self._order):
            self._running.pop(self._turn)
        else:
            self._running[self._turn] = self._order[self._entered]
            self._entered += 1

    def state(self) -> Any:
        """The shards in the window, the samples taken of each, the one that is next, and how many have entered."""
        return {
            "running": list(self._running),
            "offsets": list(self._offsets),
            "turn": self._turn,
            "entered": self._entered,
        }

    def was_moved(self) -> bool:
        """False: each reader opens shards of its own."""
        return False

    def finish(self, epoch: int, end: Any) -> None:
        """Do nothing: a pass does not depend on the one before."""

    def carried(self) -> dict[str, Any]:
        """Return nothing: shards are opened anew in each pass."""
        return {}

    def carry(self, state: dict[str, Any]) -> None:
        """Do nothing."""
