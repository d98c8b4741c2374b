"""The order of an epoch: a bijection of [0, n) that needs no memory and no start-up time.

It is a generalised Feistel network (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002) over a grid of
rows * columns >= n cells; it walks a cycle until it reaches a cell below n. A small n, for which few rounds would be
biased, takes a sort of 64-bit hashes instead. All arithmetic is on integers modulo 2**64, so the order is the same on
every platform and in every version.
"""

from __future__ import annotations

from math import isqrt
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

ALGORITHM: Final = "feistel8-v1"
SORTED_BELOW: Final = 1 << 14
ROUNDS: Final = 8
MAX_LENGTH: Final = 1 << 62

_MASK: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15
_MIX_1: Final = 0xBF58476D1CE4E5B9
_MIX_2: Final = 0x94D049BB133111EB
_BLOCK: Final = 1 << 13  # four arrays of these stay in the processor's cache


def _operand(value: int) -> NDArray[np.uint64]:
    """A number as an array without dimensions; numpy computes with it twice as fast as with a scalar."""
    return np.array(value, dtype=np.uint64)


_FIRST: Final = _operand(_MIX_1)
_SECOND: Final = _operand(_MIX_2)
_THIRTY: Final = _operand(30)
_TWENTY_SEVEN: Final = _operand(27)
_THIRTY_ONE: Final = _operand(31)
_HALF: Final = _operand(32)


def mix64(value: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea and Flood, 2014): a bijection of 64-bit integers."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * _MIX_1) & _MASK
    value = ((value ^ (value >> 27)) * _MIX_2) & _MASK
    return value ^ (value >> 31)


def derive(*parts: int) -> int:
    """One 64-bit key from several integers; their order matters."""
    key = 0
    for part in parts:
        key = mix64(key + _GOLDEN + mix64(part + _GOLDEN))
    return key


def derive_each(prefix: int, parts: NDArray[np.uint64]) -> list[int]:
    """`derive(..., part)` for many parts at once, given the key of the parts before them.

    Args:
        prefix: The key of the parts before.
        parts: The last part of each key.
    """
    golden = np.uint64(_GOLDEN)
    keys: list[int] = mix_array(mix_array(parts + golden) + golden + np.uint64(prefix)).tolist()
    return keys


def mix_array(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`mix64` of every element of an array with dimensions."""
    shifted = values >> _THIRTY
    mixed = values ^ shifted
    mixed *= _FIRST
    mixed ^= np.right_shift(mixed, _TWENTY_SEVEN, out=shifted)
    mixed *= _SECOND
    mixed ^= np.right_shift(mixed, _THIRTY_ONE, out=shifted)
    return mixed


def small_permutations(length: int, seed: int, epochs: NDArray[np.int64]) -> NDArray[np.int64]:
    """`Permutation(length, seed, epoch)` for each of several epochs, as the rows of one array.

    Args:
        length: In [1, SORTED_BELOW - 1].
        seed: In [0, 2**64 - 1].
        epochs: Each at least 0.
    """
    keys = np.array(derive_each(derive(length, seed), epochs.astype(np.uint64)), dtype=np.uint64)
    steps = np.arange(length, dtype=np.uint64) * np.uint64(_GOLDEN) + keys[:, None]
    return np.argsort(mix_array(steps), axis=1, kind="stable")


class Permutation:
    """A bijection of [0, length), a function of (length, seed, epoch) alone.

    Args:
        length: Number of elements, in [0, 2**62].
        seed: In [0, 2**64 - 1].
        epoch: At least 0.
    """

    __slots__ = ("_columns", "_limit", "_sorted", "_turns", "length")

    def __init__(self, length: int, seed: int, epoch: int = 0) -> None:
        if not 0 <= length <= MAX_LENGTH:
            raise ValueError(f"length={length} is outside [0, 2**62]")
        self.length = length
        key = derive(length, seed, epoch)
        rows = isqrt(max(length - 1, 0)) + 1
        columns = -(-length // rows)
        self._columns, self._limit = _operand(columns), _operand(length)
        self._turns = [(_operand(derive(key, turn)), _operand(columns if turn % 2 else rows)) for turn in range(ROUNDS)]
        self._sorted: NDArray[np.int64] | None = None
        if length < SORTED_BELOW:
            # Distinct inputs of a bijection have distinct hashes, so there are no ties.
            steps = np.arange(length, dtype=np.uint64) * np.uint64(_GOLDEN) + np.uint64(key)
            self._sorted = np.argsort(mix_array(steps), kind="stable").astype(np.int64)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, position: int) -> int:
        """The element at one position."""
        return int(self.take(np.array([position]))[0])

    def block(self, start: int, stop: int) -> NDArray[np.int64]:
        """The elements at positions [start, stop)."""
        return self.take(np.arange(start, stop, dtype=np.int64))

    def take(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The elements at the given positions.

        Args:
            positions: One-dimensional, each in [0, length - 1].

        Raises:
            IndexError: A position is outside.
        """
        if positions.size and not (positions.min() >= 0 and positions.max() < self.length):
            raise IndexError(f"positions {positions.min()} to {positions.max()} are not all in [0, {self.length - 1}]")
        if self._sorted is not None:
            return self._sorted[positions]
        found = np.empty(len(positions), dtype=np.int64)
        for start in range(0, len(positions), _BLOCK):
            found[start : start + _BLOCK] = self._walk(positions[start : start + _BLOCK].astype(np.uint64))
        return found

    def _walk(self, cells: NDArray[np.uint64]) -> NDArray[np.uint64]:
        limit = self._limit
        cells = self._network(cells)
        outside = np.flatnonzero(cells >= limit)
        while outside.size:
            moved = self._network(cells[outside])
            cells[outside] = moved
            outside = outside[moved >= limit]
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
