"""Virtual shards: a dataset in a fixed number of parts, each an iterable.

With known lengths, every position is an offset in a shard: the samples have indices, each rank and loader process
opens only the shards that it reads, and everything that is true for indexed datasets is true. Without lengths, the
shards are a stream.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from twinkle_data.option_checks import whole_number
from twinkle_data.order.shard_rows import window_of
from twinkle_data.reading.randomness import seed_this
from twinkle_data.sources.fingerprint import digest, fingerprint_of
from twinkle_data.sources.open_shards import OpenShards, ShardEndedError
from twinkle_data.sources.shard_rows import ShuffledShards
from twinkle_data.sources.sharded_order import WINDOW

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class Shards:
    """A dataset in a fixed number of virtual shards; pass it as the dataset of a loader.

    The order takes one sample of each of 128 shards in turn; a shard that ends makes room for the next one. With
    `shuffle=True`, each epoch has another order of the shards, and of the rows in each shard within windows: of 4096
    rows for one shard, of 32 where 128 are open.

    Args:
        start: `start(shard, offset)` returns an iterable over a shard from sample `offset` on. Any process may call
            it, more than once.
        count: Number of shards, at least 1: a property of the dataset, not of the ranks that read it.
        lengths: Number of samples in each shard. With them, `len()` works, and every rank reads only the shards of
            its rows. A shard that is shorter or longer is an error when its end is read.
        fingerprint: Name of the dataset's contents.
    """

    def __init__(
        self,
        start: Callable[[int, int], Iterable[Any]],
        count: int,
        lengths: Sequence[int] | None = None,
        *,
        fingerprint: str = "",
    ) -> None:
        count = whole_number("count", count)
        if count < 1:
            raise ValueError(f"count={count} must be at least 1")
        if lengths is not None and len(lengths) != count:
            raise ValueError(
                f"lengths= holds a number of samples for each of {count} shards, got {len(lengths)} numbers"
            )
        known = None if lengths is None else tuple(whole_number("a shard's length", length) for length in lengths)
        if known is not None and min(known) < 0:
            shard = next(shard for shard, length in enumerate(known) if length < 0)
            raise ValueError(f"lengths= holds numbers of samples of at least 0, shard {shard} has {known[shard]}")
        self.start = start
        self.count = count
        self.lengths = known
        self._name = fingerprint

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the name and the lengths; without a name, of what `start` holds too: files, arrays, arguments."""
        own = [self._name, self.count, list(self.lengths or ())]
        return digest(own if self._name else [*own, fingerprint_of(self.start)])


class ShardedSource:
    """Shards of known lengths as a source; an index counts through the shards.

    Args:
        shards: The shards.
        shuffled: Their rows are asked for in a shuffled order.
        share: The share of the rows of a shard that this process reads, in (0, 1].
    """

    plain = False
    at_once = False

    def __init__(self, shards: Shards, *, shuffled: bool, share: float = 1.0) -> None:
        assert shards.lengths is not None
        self.dataset = shards
        self._shuffled = shuffled
        self._starts = np.concatenate(([0], np.cumsum(np.array(shards.lengths, dtype=np.int64))))
        self._open = OpenShards(shards.start, seed_this)
        window = window_of(min(shards.count, WINDOW))
        self._rows = ShuffledShards(self._open, window, self._key, share) if shuffled else self._open

    def for_share(self, share: float) -> ShardedSource:
        """The same source for a process that reads a share of the rows of a shard."""
        return ShardedSource(self.dataset, shuffled=True, share=share) if self._shuffled else self

    def __reduce__(self) -> tuple[Any, ...]:
        share = self._rows.share if isinstance(self._rows, ShuffledShards) else 1.0
        return _sharded, (self.dataset, self._shuffled, share)

    def _key(self, shard: int, offset: int) -> tuple[int, ...]:
        return (int(self._starts[shard]) + offset,)

    @property
    def fingerprint(self) -> str:
        """That of the shards."""
        return self.dataset.fingerprint

    def __len__(self) -> int:
        return int(self._starts[-1])

    def lengths_now(self) -> tuple[int, ...]:
        """None: they are given."""
        return ()

    @property
    def read(self) -> Callable[[int], Any]:
        """The function that reads one sample."""
        return self._read

    def _read(self, index: int) -> Any:
        shard = int(np.searchsorted(self._starts, index, side="right")) - 1
        wanted = index - int(self._starts[shard])
        length = int(self._starts[shard + 1] - self._starts[shard])
        try:
            sample = self._rows.take(shard, wanted)
        except ShardEndedError as ended:
            raise IndexError(
                f"shard {shard} ended at {ended.length} samples; its length is given as {length}"
            ) from None
        if wanted == length - 1 and self._open.has_sample(shard, length):
            raise IndexError(f"shard {shard} has more than {length} samples; its given length is {length}")
        return sample

    def read_many(self, indices: Sequence[int]) -> list[Any]:
        """Read samples, one by one."""
        return [self._read(index) for index in indices]

    def span(self, index: int) -> tuple[int, int]:
        """The indices of the same shard."""
        shard = int(np.searchsorted(self._starts, index, side="right")) - 1
        return int(self._starts[shard]), int(self._starts[shard + 1])

    def portions(self, indices: Sequence[int]) -> None:
        """None: this is a single dataset."""

    def datasets(self) -> Sequence[Any]:
        """The shards."""
        return (self.dataset,)


def _sharded(shards: Shards, shuffled: bool, share: float) -> ShardedSource:
    return ShardedSource(shards, shuffled=shuffled, share=share)
