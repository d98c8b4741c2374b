"""Datasets that are gone through rather than indexed: virtual shards, and streams.

`Shards` whose lengths are known become an order like any other: every position is a place in a shard, so each
rank and loader process opens only what it reads, and everything that holds for indexed datasets holds. Of
anything else only going through it tells where it ends: every rank goes through all of it and keeps its rows,
which is what makes the numbers of steps equal.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from twinkle_data.errors import NotResumableError
from twinkle_data.order.permutation import ALGORITHM, Permutation, derive
from twinkle_data.sources.fingerprint import digest
from twinkle_data.sources.open_shards import OpenShards, ShardEndedError
from twinkle_data.whole_number import whole_number

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Shards:
    """A dataset in a fixed number of virtual shards, each gone through from its front; pass it as the loader's dataset.

    The order takes one sample of each shard in turn. Shards that end drop out.

    Args:
        start: `start(shard, offset)` goes through a shard from its offset-th sample on; called in any
            process, and again for every resume.
        count: Number of shards, at least 1: a property of the dataset, not of the ranks that read it.
        lengths: Samples in each shard. With them, `len()` is exact, and every rank reads only the shards of
            its rows.
        fingerprint: Says what the dataset is.
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
        self.fingerprint = digest([fingerprint, count, list(self.lengths or ())])


class ShardedSource:
    """Shards of known lengths as samples by index: an index counts through the shards.

    Args:
        shards: The shards.
    """

    plain = False
    at_once = False

    def __init__(self, shards: Shards) -> None:
        assert shards.lengths is not None
        self.dataset = shards
        self._starts = np.concatenate(([0], np.cumsum(np.array(shards.lengths, dtype=np.int64))))
        self._open = OpenShards(shards.start)
        self.fingerprint = shards.fingerprint

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def read(self) -> Callable[[int], Any]:
        """Gives one sample."""
        return self._read

    def _read(self, index: int) -> Any:
        shard = int(np.searchsorted(self._starts, index, side="right")) - 1
        wanted = index - int(self._starts[shard])
        try:
            return self._open.take(shard, wanted)
        except ShardEndedError as ended:
            length = int(self._starts[shard + 1] - self._starts[shard])
            raise IndexError(
                f"shard {shard} ended at {ended.length} samples; its length is given as {length}"
            ) from None

    def read_many(self, indices: Sequence[int]) -> list[Any]:
        """The samples, one by one."""
        return [self._read(index) for index in indices]

    def span(self, index: int) -> tuple[int, int]:
        """The samples of the same shard."""
        shard = int(np.searchsorted(self._starts, index, side="right")) - 1
        return int(self._starts[shard]), int(self._starts[shard + 1])

    def portions(self, indices: Sequence[int]) -> None:
        """One dataset."""


class ShardedOrder:
    """One sample of each shard in turn.

    Args:
        lengths: Samples of each shard.
        seed: Seed of the order.
        shuffle: Take the shards in another order in each epoch.
    """

    def __init__(self, lengths: Sequence[int], seed: int, *, shuffle: bool) -> None:
        self.algorithm = f"shards-v1+{ALGORITHM if shuffle else 'sequential-v1'}"
        self._lengths = np.array(lengths, dtype=np.int64)
        self._starts = np.concatenate(([0], np.cumsum(self._lengths)))[:-1]
        self.length = int(self._lengths.sum())
        # Between two distinct lengths the same shards take turns.
        self._levels = np.unique(np.concatenate(([0], self._lengths)))
        running = np.array([np.count_nonzero(self._lengths > level) for level in self._levels[:-1]], dtype=np.int64)
        self._begins = np.concatenate(([0], np.cumsum(np.diff(self._levels) * running)))
        self._seed = seed
        self._shuffle = shuffle

    def take(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The indices at the given positions of an epoch."""
        turn = np.arange(len(self._lengths))
        if self._shuffle:
            turn = Permutation(len(turn), derive(self._seed, 3), epoch).block(0, len(turn))
        found = np.empty(len(positions), dtype=np.int64)
        levels = np.searchsorted(self._begins, positions, side="right") - 1
        for level in np.unique(levels).tolist():
            chosen = np.flatnonzero(levels == level)
            shards = turn[self._lengths[turn] > self._levels[level]]
            rounds, places = np.divmod(positions[chosen] - self._begins[level], len(shards))
            found[chosen] = self._starts[shards[places]] + self._levels[level] + rounds
        return found


class Stream(Protocol):
    """Samples that are gone through in one order.

    Attributes:
        algorithm: Name and version of the order.
        fingerprint: Digest of the dataset.
        resumable: `state` can bring it back.
        dataset: What the user gave.
    """

    dataset: Any
    algorithm: str
    fingerprint: str
    resumable: bool

    def begin(self, epoch: int, state: Any) -> Iterator[Any]:
        """Go through an epoch from its front, or on from a state."""

    def state(self) -> Any:
        """Where it is, as JSON values: behind the last sample that was taken."""


class IterableStream:
    """A torch or Hugging Face iterable dataset, or any iterable.

    Args:
        dataset: The iterable; resumable where it has `state_dict` and `load_state_dict`.
    """

    algorithm = "stream-v1"

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.resumable = callable(getattr(dataset, "state_dict", None)) and callable(
            getattr(dataset, "load_state_dict", None)
        )
        self._begun = False
        self._front: Any = None
        own = getattr(dataset, "fingerprint", None) or getattr(dataset, "_fingerprint", None)
        self.fingerprint = digest(own if isinstance(own, str) else type(dataset).__qualname__)

    def begin(self, epoch: int, state: Any) -> Iterator[Any]:
        """Go through an epoch from its front, or on from a state."""
        tell = getattr(self.dataset, "set_epoch", None)
        if tell is not None:
            tell(epoch)
        if self.resumable:
            fresh, self._begun = not self._begun, True
            if fresh:
                self._front = deepcopy(self.dataset.state_dict())
            buffered = _in_shuffle_buffers(self.dataset)
            if state is not None and buffered:
                warnings.warn(
                    f"{type(self.dataset).__name__} does not save its shuffle buffer: up to {buffered} samples are "
                    "lost in this resumed epoch, and some may come twice. Resume at the start of an epoch, or "
                    "shuffle by index (a map-style dataset with shuffle=True) or by Shards",
                    RuntimeWarning,
                    stacklevel=2,
                )
            # Some datasets begin every pass where the last loaded state said, so the front is loaded too.
            if state is not None or not fresh:
                self.dataset.load_state_dict(deepcopy(self._front if state is None else state))
        return iter(self.dataset)

    def state(self) -> Any:
        """Where it is, in the dataset's own words."""
        # A copy: some datasets give out, and keep, the dict that they go on counting in.
        return deepcopy(self.dataset.state_dict()) if self.resumable else None


class ShardStream:
    """Shards of unknown lengths, one sample of each in turn.

    Args:
        shards: The shards.
        seed: Seed of the order.
        shuffle: Take the shards in another order in each epoch.
    """

    resumable = True

    def __init__(self, shards: Shards, seed: int, *, shuffle: bool) -> None:
        self.algorithm = f"shards-v1+{ALGORITHM if shuffle else 'sequential-v1'}"
        self.fingerprint = shards.fingerprint
        self.dataset = shards
        self._seed = seed
        self._shuffle = shuffle
        self._open = OpenShards(shards.start)
        self._offsets: list[int] = []
        self._running: list[int] = []
        self._turn = 0

    def begin(self, epoch: int, state: Any) -> Iterator[Any]:
        """Go through an epoch from its front, or on from a state."""
        self._open.close()
        count = self.dataset.count
        if state is None:
            turn = Permutation(count, derive(self._seed, 3), epoch) if self._shuffle else range(count)
            self._running = [int(turn[place]) for place in range(count)]
            self._offsets, self._turn = [0] * count, 0
        else:
            self._running, self._offsets = list(state["running"]), list(state["offsets"])
            self._turn = state["turn"]
        return self._go()

    def _go(self) -> Iterator[Any]:
        while self._running:
            self._turn %= len(self._running)
            shard = self._running[self._turn]
            try:
                sample = self._open.take(shard, self._offsets[shard])
            except ShardEndedError:
                self._running.pop(self._turn)
                continue
            self._offsets[shard] += 1
            self._turn += 1
            yield sample

    def state(self) -> Any:
        """The shards that still run, in turn, the samples taken of each, and whose turn it is."""
        return {"running": list(self._running), "offsets": list(self._offsets), "turn": self._turn}


class Made:
    """What a callable returns, made anew each time that it is gone through.

    Args:
        make: Returns something to go through once, such as a generator.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        return iter(self._make())


def open_stream(dataset: object, factory: Callable[[], object] | None, seed: int, *, shuffle: bool) -> Stream | None:
    """A stream of a dataset; None when it is one that can be indexed.

    Args:
        dataset: The dataset.
        factory: What built it, if anything did.
        seed: Seed of its order.
        shuffle: Shuffle its order.

    Raises:
        TypeError: It is a generator, which can be gone through only once.
        ValueError: A stream other than shards is to be shuffled.
    """
    if isinstance(dataset, Shards):
        return ShardStream(dataset, seed, shuffle=shuffle) if dataset.lengths is None else None
    if not isinstance(dataset, Iterable) or (hasattr(dataset, "__getitem__") and not _is_torch_iterable(dataset)):
        return None
    if isinstance(dataset, Iterator) and factory is not None:
        dataset = Made(factory)
    if isinstance(dataset, Iterator):
        raise TypeError(
            f"a {type(dataset).__name__} can be gone through only once; pass an object with "
            "__iter__, or the callable that makes it"
        )
    if shuffle:
        raise ValueError(
            f"shuffle=True needs samples by index, and {type(dataset).__name__} can only be gone through: shuffle it "
            "itself, or pass Shards, whose order is shuffled"
        )
    return IterableStream(dataset)


def refuse_resume(dataset: str) -> NotResumableError:
    """The error for a stream that cannot be brought back to a position."""
    return NotResumableError(
        f"{dataset} cannot be resumed within an epoch: it can only be gone through from its front. Give it "
        "state_dict() and load_state_dict(), pass Shards, or save at the end of an epoch (position 0)"
    )


def _in_shuffle_buffers(dataset: object) -> int:
    """Samples that the shuffle buffers of a Hugging Face stream hold; no public attribute or state of it tells."""
    home = "datasets.iterable_dataset"
    found, parts = 0, [dataset] if type(dataset).__module__ == home else []
    while parts:
        part: Any = parts.pop()
        if type(part).__name__ == "BufferShuffledExamplesIterable":
            found += part.buffer_size
        for value in vars(part).values():
            inner = value if isinstance(value, (list, tuple)) else [value]
            parts += [own for own in inner if type(own).__module__ == home and hasattr(own, "__dict__")]
    return found


def _is_torch_iterable(dataset: object) -> bool:
    return any(
        kind.__name__ == "IterableDataset" and kind.__module__.partition(".")[0] == "torch"
        for kind in type(dataset).__mro__
    )
