"""Shards of unknown lengths as a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_data.reading.randomness import seed_again
from twinkle_data.sources.open_shards import OpenShards, ShardEndedError
from twinkle_data.sources.sharded_order import WINDOW, algorithm_of, shards_in_order

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twinkle_data.sources.shards import Shards


class ShardStream:
    """Shards of unknown lengths; takes one sample of each shard of the window in turn.

    Args:
        shards: The shards.
        seed: Seed of the order.
        shuffle: Use a new order of the shards in each epoch.
    """

    resumable = True

    def __init__(self, shards: Shards, seed: int, *, shuffle: bool) -> None:
        self.algorithm = algorithm_of(shards.count, shuffle=shuffle)
        self.dataset = shards
        self._seed = seed
        self._shuffle = shuffle
        self._open = OpenShards(shards.start, seed_again)
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
                sample = self._open.take(shard, self._offsets[shard])
            except ShardEndedError:
                self._replace()
                continue
            self._offsets[shard] += 1
            self._turn += 1
            yield sample

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
