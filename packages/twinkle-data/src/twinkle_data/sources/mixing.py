"""Several datasets mixed by weight: exact shares, in an order with access to any position.

Positions are counted over the whole run. Every block of 4096 positions holds an exact number of samples of each
dataset, shuffled within the block, so arithmetic gives the sample at a position. All samples of a dataset come once
before one of them comes again, also from one epoch to the next.
"""

from __future__ import annotations

import warnings
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping
from functools import cached_property
from itertools import accumulate
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from twinkle_data.option_checks import whole_number
from twinkle_data.order.permutation import ALGORITHM, Permutation, derive, small_permutations
from twinkle_data.sources.fingerprint import digest
from twinkle_data.sources.indexed import Portion, build, open_source
from twinkle_data.sources.shards import Shards

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from twinkle_data.sources.indexed import Source

BLOCK: Final = 4096
_CACHED: Final = 8
_SMALL: Final = 1 << 10


class Mixture:
    """Datasets mixed by weight; pass it as the dataset of a loader.

    An index of a mixture counts through its datasets in the order in which they are given.

    Args:
        datasets: Datasets by name, each of a kind that a loader takes by index.
        weights: A weight above 0 for each name, rounded to 4096ths of their sum; None takes the lengths as weights. A
            share that would be rounded to 0 is raised to 1/4096, with a warning.
        epoch_length: Samples in an epoch; None takes the sum of the lengths.

    Raises:
        TypeError: Datasets or weights are not given by name.
        ValueError: A dataset is empty, or a weight or the length of an epoch out of range.
    """

    def __init__(
        self,
        datasets: Mapping[str, object],
        weights: Mapping[str, float] | None = None,
        *,
        epoch_length: int | None = None,
    ) -> None:
        for field, value in (("datasets", datasets), ("weights", weights)):
            if not isinstance(value, Mapping) and value is not None:
                raise TypeError(f"{field} of a mixture go by name, as in {{'code': ...}}, got a {type(value).__name__}")
        self.names = tuple(datasets)
        if not self.names:
            raise ValueError("a mixture needs at least one dataset")
        self.sources: tuple[Source, ...] = tuple(_part(name, dataset) for name, dataset in datasets.items())
        self.lengths = tuple(len(source) for source in self.sources)
        empty = [name for name, length in zip(self.names, self.lengths, strict=True) if length == 0]
        if empty:
            raise ValueError(f"these datasets of the mixture are empty: {', '.join(empty)}")
        given = dict(zip(self.names, self.lengths, strict=True)) if weights is None else dict(weights)
        if given.keys() != set(self.names) or not all(weight > 0 for weight in given.values()):
            raise ValueError(f"weights must be above 0, one for each of {list(self.names)}, got {given}")
        if not isfinite(sum(given.values())):
            raise ValueError(f"the weights and their sum must be finite, got {given}")
        self.quotas = _quotas([given[name] for name in self.names])
        self._warn_of_small_shares(given)
        epoch_length = None if epoch_length is None else whole_number("epoch_length", epoch_length)
        if epoch_length is not None and epoch_length < 1:
            raise ValueError(f"epoch_length={epoch_length} must be at least 1")
        self.epoch_length = sum(self.lengths) if epoch_length is None else epoch_length
        self._starts = [0, *accumulate(self.lengths)]

    def _warn_of_small_shares(self, weights: Mapping[str, float]) -> None:
        total = sum(weights.values())
        small = [name for name in self.names if weights[name] / total < 0.5 / BLOCK]
        if small:
            share = weights[small[0]] / total
            warnings.warn(
                f"the shares of {', '.join(map(repr, small))} are raised to 1/{BLOCK}, the smallest one of a mixture: "
                f"{small[0]!r} comes {1 / BLOCK / share:.3g} times as often as its weight says; use at least "
                f"{total / BLOCK:.3g}, or join it with another dataset (torch's ConcatDataset)",
                RuntimeWarning,
                stacklevel=3,
            )

    def locate(self, index: int) -> tuple[str, int]:
        """The name of the dataset that an index belongs to, and the index in that dataset.

        Args:
            index: In [0, sum of the lengths - 1], as in `Batch.indices`.
        """
        if not 0 <= index < self._starts[-1]:
            raise IndexError(f"index={index} is outside [0, {self._starts[-1] - 1}]")
        number = bisect_right(self._starts, index) - 1
        return self.names[number], index - self._starts[number]

    def shares(self) -> dict[str, float]:
        """The share of each dataset, in (0, 1]."""
        return {name: quota / BLOCK for name, quota in zip(self.names, self.quotas, strict=True)}


class MixedSource:
    """The samples of a mixture, by index.

    Args:
        mixture: The mixture.
    """

    def __init__(self, mixture: Mixture) -> None:
        self.dataset = mixture
        self._sources = mixture.sources
        self._starts = [0, *accumulate(mixture.lengths)]
        self._bounds = np.array(self._starts[1:], dtype=np.int64)
        self.at_once = True

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the names, lengths and shares, and of the fingerprints of the datasets."""
        mixture = self.dataset
        return digest(
            [
                list(mixture.names),
                list(mixture.lengths),
                list(mixture.quotas),
                mixture.epoch_length,
                [source.fingerprint for source in self._sources],
            ]
        )

    def __len__(self) -> int:
        return self._starts[-1]

    def lengths_now(self) -> tuple[int, ...]:
        """The present lengths of all datasets."""
        return tuple(length for source in self._sources for length in source.lengths_now())

    @property
    def plain(self) -> bool:
        """Whether all of the datasets are plain."""
        return all(source.plain for source in self._sources)

    @property
    def read(self) -> Callable[[int], Any]:
        """The function that reads one sample."""
        return self._read

    def _read(self, index: int) -> Any:
        number = bisect_right(self._starts, index) - 1
        return self._sources[number].read(index - self._starts[number])

    def read_many(self, indices: Sequence[int]) -> list[Any]:
        """Read samples, one by one."""
        return [self._read(index) for index in indices]

    def datasets(self) -> Sequence[Any]:
        """The objects whose code reads samples, of all datasets."""
        return [one for source in self._sources for one in source.datasets()]

    def portions(self, indices: Sequence[int]) -> Sequence[Portion]:
        """The samples by dataset, each dataset with its rows of the step."""
        numbers = np.searchsorted(self._bounds, np.array(indices, dtype=np.int64), side="right")
        return [
            Portion(np.flatnonzero(numbers == number).tolist(), self._sources[number], self._starts[number])
            for number in np.unique(numbers).tolist()
        ]

    def span(self, index: int) -> tuple[int, int]:
        """The indices of the same dataset."""
        number = bisect_right(self._starts, index) - 1
        return self._starts[number], self._starts[number + 1]


class MixedOrder:
    """The order of a mixture.

    Args:
        lengths: Samples of each dataset.
        quotas: Samples of each dataset in a block; they sum to `BLOCK`.
        epoch_length: Samples of an epoch.
        seed: Seed of the order.
        shuffle: Use a new permutation for each pass over a dataset.
    """

    def __init__(
        self, lengths: Sequence[int], quotas: Sequence[int], epoch_length: int, seed: int, *, shuffle: bool
    ) -> None:
        self.algorithm = f"mixed-v1+{ALGORITHM if shuffle else 'sequential-v1'}"
        self.length = epoch_length
        self._lengths = np.array(lengths, dtype=np.int64)
        self._quotas = np.array(quotas, dtype=np.int64)
        self._starts = np.concatenate(([0], np.cumsum(self._lengths)))
        self._bounds = np.cumsum(self._quotas)
        self._seed = seed
        self._shuffle = shuffle
        self._blocks: OrderedDict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = OrderedDict()
        self._passes: OrderedDict[tuple[int, int], Permutation] = OrderedDict()

    def take(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The indices at the given positions of an epoch."""
        run = positions + epoch * self.length
        found = np.empty(len(run), dtype=np.int64)
        blocks, slots = np.divmod(run, BLOCK)
        for block in np.unique(blocks).tolist():
            chosen = np.flatnonzero(blocks == block)
            labels, ranks = self._block(block)
            own = slots[chosen]
            found[chosen] = self._draws(labels[own], block * self._quotas[labels[own]] + ranks[own])
        return found

    def _block(self, block: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For each slot of a block: its dataset, and how many of that dataset come before it in the block."""
        if block not in self._blocks:
            shuffled = Permutation(BLOCK, derive(self._seed, 1), block).block(0, BLOCK)
            labels = np.searchsorted(self._bounds, shuffled, side="right")
            ranks = np.empty(BLOCK, dtype=np.int64)
            for label in range(len(self._quotas)):
                mine = np.flatnonzero(labels == label)
                ranks[mine] = np.arange(len(mine))
            _remember(self._blocks, block, (labels, ranks))
        return self._blocks[block]

    def _draws(self, labels: NDArray[np.int64], draws: NDArray[np.int64]) -> NDArray[np.int64]:
        passes, positions = np.divmod(draws, self._lengths[labels])
        if self._shuffle:
            for label in np.unique(labels).tolist():
                mine = np.flatnonzero(labels == label)
                if self._lengths[label] <= _SMALL:
                    positions[mine] = self._permuted(label, passes[mine], positions[mine])
                    continue
                for number in np.unique(passes[mine]).tolist():
                    chosen = mine[passes[mine] == number]
                    positions[chosen] = self._pass(label, number).take(positions[chosen])
        return self._starts[labels] + positions

    def _permuted(self, label: int, passes: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Permuted positions in a small dataset; computes the permutations of all its passes at once."""
        numbers, which = np.unique(passes, return_inverse=True)
        return small_permutations(int(self._lengths[label]), derive(self._seed, 2, label), numbers)[which, positions]

    def _pass(self, label: int, number: int) -> Permutation:
        key = (label, number)
        if key not in self._passes:
            permutation = Permutation(int(self._lengths[label]), derive(self._seed, 2, label), number)
            _remember(self._passes, key, permutation, limit=2 * len(self._lengths) + _CACHED)
        return self._passes[key]


def _part(name: str, dataset: object) -> Source:
    """The source of one dataset of a mixture."""
    dataset, _ = build(dataset)
    kind = type(dataset).__name__
    is_stream = hasattr(dataset, "__iter__") and not hasattr(dataset, "__len__")
    if isinstance(dataset, (Mixture, Shards)) or is_stream:
        use = "give its datasets, with weights" if isinstance(dataset, Mixture) else "mix in the stream itself"
        raise TypeError(f"dataset {name!r} of a mixture needs samples by index, and a {kind} has none; {use}")
    return open_source(dataset)


def _remember(cache: OrderedDict[Any, Any], key: object, value: object, limit: int = _CACHED) -> None:
    cache[key] = value
    while len(cache) > limit:
        cache.popitem(last=False)


def _quotas(weights: Sequence[float]) -> tuple[int, ...]:
    """Whole numbers, each at least 1, that sum to `BLOCK` and are nearest to the weights."""
    if len(weights) > BLOCK:
        raise ValueError(f"a mixture holds at most {BLOCK} datasets, got {len(weights)}")
    total = sum(weights)
    exact = [weight / total * BLOCK for weight in weights]
    quotas = [max(int(share), 1) for share in exact]
    while sum(quotas) != BLOCK:
        step = 1 if sum(quotas) < BLOCK else -1
        able = [label for label in range(len(quotas)) if step > 0 or quotas[label] > 1]
        quotas[max(able, key=lambda label: step * (exact[label] - quotas[label]))] += step
    return tuple(quotas)
