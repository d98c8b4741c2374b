"""The order of an epoch: (epoch, position) -> index, a function of the length, the seed and the epoch alone.

The permutation needs no memory and no start-up time. It is a generalised Feistel network (Black and Rogaway, "Ciphers
with Arbitrary Finite Domains", 2002) over a grid of rows * columns >= n cells; it walks a cycle until it reaches a cell
below n. A small n, for which few rounds would be biased, takes a sort of 64-bit hashes instead. All arithmetic is on
integers modulo 2**64, so the order is the same on every platform and in every version that has the same name for it.
"""

from __future__ import annotations

from math import isqrt
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

ALGORITHM: Final = "feistel8-v1"
_SORTED_BELOW: Final = 1 << 14
_ROUNDS: Final = 8
_MASK: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15
_MIX: Final = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_BLOCK: Final = 1 << 13  # four arrays of these stay in the processor's cache


def _operand(value: int) -> NDArray[np.uint64]:
    """A number as an array without dimensions; numpy computes with it twice as fast as with a scalar."""
    return np.array(value, dtype=np.uint64)


_FIRST, _SECOND = map(_operand, _MIX)
_THIRTY, _TWENTY_SEVEN, _THIRTY_ONE, _HALF = map(_operand, (30, 27, 31, 32))


def mix64(value: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea and Flood, 2014): a bijection of 64-bit integers."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * _MIX[0]) & _MASK
    value = ((value ^ (value >> 27)) * _MIX[1]) & _MASK
    return value ^ (value >> 31)


def derive(*parts: int) -> int:
    """One 64-bit key from several integers; their order matters."""
    key = 0
    for part in parts:
        key = mix64(key + _GOLDEN + mix64(part + _GOLDEN))
    return key


def derive_each(prefix: int, parts: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`derive(..., part)` for many last parts at once."""
    golden = np.uint64(_GOLDEN)
    return _mix_array(_mix_array(parts + golden) + golden + np.uint64(prefix))


def _mix_array(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`mix64` of every element of an array with dimensions."""
    shifted = values >> _THIRTY
    mixed = values ^ shifted
    mixed *= _FIRST
    mixed ^= np.right_shift(mixed, _TWENTY_SEVEN, out=shifted)
    mixed *= _SECOND
    mixed ^= np.right_shift(mixed, _THIRTY_ONE, out=shifted)
    return mixed


def small_permutations(length: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """A permutation of [0, length) for each key, as the rows of one array; the length is small."""
    # Distinct inputs of a bijection have distinct hashes, so there are no ties.
    steps = np.arange(length, dtype=np.uint64) * np.uint64(_GOLDEN) + keys[:, None]
    return np.argsort(_mix_array(steps), axis=1, kind="stable")


class Permutation:
    """A bijection of [0, length), a function of (length, seed, epoch) alone; the length is in [0, 2**62]."""

    def __init__(self, length: int, seed: int, epoch: int = 0) -> None:
        key = derive(length, seed, epoch)
        rows = isqrt(max(length - 1, 0)) + 1
        columns = -(-length // rows)
        self._columns, self._limit = _operand(columns), _operand(length)
        sizes = _operand(rows), _operand(columns)
        self._turns = [(_operand(derive(key, turn)), sizes[turn % 2]) for turn in range(_ROUNDS)]
        self._sorted: NDArray[np.int64] | None = None
        if length < _SORTED_BELOW:
            self._sorted = small_permutations(length, np.array([key], dtype=np.uint64))[0]

    def block(self, start: int, stop: int) -> NDArray[np.int64]:
        """The elements at positions [start, stop)."""
        return self.take(np.arange(start, stop, dtype=np.int64))

    def take(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The elements at the given positions, each in [0, length - 1]."""
        if self._sorted is not None:
            return self._sorted[positions]
        found = np.empty(len(positions), dtype=np.int64)
        for start in range(0, len(positions), _BLOCK):
            found[start : start + _BLOCK] = self._walk(positions[start : start + _BLOCK].astype(np.uint64))
        return found

    def _walk(self, cells: NDArray[np.uint64]) -> NDArray[np.uint64]:
        cells = self._network(cells)
        outside = np.flatnonzero(cells >= self._limit)
        while outside.size:
            moved = self._network(cells[outside])
            cells[outside] = moved
            outside = outside[moved >= self._limit]
        return cells

    def _network(self, cells: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left = cells // self._columns
        right = cells - left * self._columns
        hashes, spare = np.empty_like(left), np.empty_like(left)
        side, other = left, right
        for key, size in self._turns:
            np.add(other, key, out=hashes)
            np.multiply(hashes, _FIRST, out=hashes)
            np.right_shift(hashes, _HALF, out=spare)
            np.bitwise_xor(hashes, spare, out=hashes)
            np.multiply(hashes, _SECOND, out=hashes)
            np.right_shift(hashes, _HALF, out=hashes)
            # The product maps a 32-bit hash to a number below `size` without a division.
            np.multiply(hashes, size, out=hashes)
            np.right_shift(hashes, _HALF, out=hashes)
            np.add(side, hashes, out=side)
            # side < 2 * size, so one subtraction reduces it; below zero it wraps to a larger number.
            np.subtract(side, size, out=spare)
            np.minimum(side, spare, out=side)
            side, other = other, side
        return left * self._columns + right


class Order(Protocol):
    """The order of samples in each epoch: the dataset's own or a permutation, that of a mixture, or a sampler's."""

    name: str  # name and version of the rule
    length: int  # samples of an epoch

    def block(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """The indices at positions [start, stop) of an epoch."""


class DatasetOrder:
    """The dataset's own order, or a new permutation in each epoch."""

    def __init__(self, length: int, seed: int, *, shuffle: bool) -> None:
        self.name, self.length = ALGORITHM if shuffle else "sequential-v1", length
        self._seed, self._shuffle = seed, shuffle
        self._now: tuple[int, Permutation] | None = None

    def block(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """The indices at positions [start, stop) of an epoch."""
        if not self._shuffle:
            return np.arange(start, stop)
        if self._now is None or self._now[0] != epoch:
            self._now = epoch, Permutation(self.length, self._seed, epoch)
        return self._now[1].block(start, stop)


class MixedOrder:
    """The order of a mixture: each dataset has its exact share of an epoch, and its rows come equally often.

    A dataset goes through all its rows before one of them comes again, also from one epoch to the next. The order of
    one epoch is one array of indices, 8 bytes a sample. The datasets alternate at random, shuffled or not.
    """

    def __init__(self, lengths: Sequence[int], shares: Sequence[int], seed: int, *, shuffle: bool) -> None:
        self.name = f"mixed-{ALGORITHM if shuffle else 'sequential-v1'}"
        self.length = sum(shares)
        self._lengths, self._shares, self._seed, self._shuffle = list(lengths), list(shares), seed, shuffle
        self._now: tuple[int, NDArray[np.int64]] | None = None

    def block(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """The indices at positions [start, stop) of an epoch."""
        if self._now is None or self._now[0] != epoch:
            self._now = epoch, self._epoch(epoch)
        return self._now[1][start:stop]

    def _epoch(self, epoch: int) -> NDArray[np.int64]:
        slots = Permutation(self.length, derive(self._seed, 1), epoch).block(0, self.length)
        labels = np.repeat(np.arange(len(self._shares)), self._shares)[slots]
        found, begin = np.empty(self.length, dtype=np.int64), 0
        for label, (length, share) in enumerate(zip(self._lengths, self._shares, strict=True)):
            found[labels == label] = begin + self._rows(label, length, np.arange(epoch * share, (epoch + 1) * share))
            begin += length
        return found

    def _rows(self, label: int, length: int, draws: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of one dataset: its draws are counted over all epochs, and each pass has a permutation of its own."""
        passes, places = np.divmod(draws, length)
        if not self._shuffle:
            return places
        key = derive(self._seed, 2, label)
        numbers, which = np.unique(passes, return_inverse=True)
        if length < _SORTED_BELOW:
            keys = derive_each(derive(length, key), numbers.astype(np.uint64))
            return small_permutations(length, keys)[which, places]
        for number in numbers.tolist():
            own = passes == number
            places[own] = Permutation(length, key, number).take(places[own])
        return places
