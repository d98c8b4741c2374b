"""Bin packing: divides samples over packs of bounded length, and finds how many samples fit."""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heapreplace
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

_CLASSES: Final = 5
_PRECISION: Final = 64


def pack(lengths: Sequence[int] | NDArray[np.int64], packs: int, max_tokens: int) -> list[list[int]] | None:
    """Divide samples over packs of at most `max_tokens` tokens; None when this method does not make them fit.

    The longest sample goes first, into the emptiest pack, which makes the packs even; where that fails, into the
    fullest pack with room, which wastes less. Within a pack, samples keep their order.

    Args:
        lengths: Tokens of each sample.
        packs: Number of packs, at least 1; some may stay empty.
        max_tokens: Tokens that a pack holds.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    ranked = np.argsort(-sizes, kind="stable")
    longest_first = sizes[ranked].tolist()
    numbers = _emptiest_first(longest_first, packs, max_tokens) or _fullest_first(longest_first, packs, max_tokens)
    if len(numbers) < len(longest_first):
        return None
    bins: list[list[int]] = [[] for _ in range(packs)]
    for sample, number in zip(ranked.tolist(), numbers, strict=True):
        bins[number].append(sample)
    return sorted((sorted(own) for own in bins), key=lambda own: own or [len(longest_first)])


def most_rows(lengths: NDArray[np.int64], packs: int, max_tokens: int) -> int:
    """The number of samples, from the first on, that `pack` can fit; within 1/64 of the maximum.

    Args:
        lengths: Tokens of each sample, each in [1, max_tokens]; at most as many samples as `bounds` gives.
        packs: Number of packs, at least 1.
        max_tokens: Tokens that a pack holds.
    """
    fails = len(lengths)
    if _fits(lengths, packs, max_tokens):
        return fails
    fits, step = fails, 1
    while not _fits(lengths[:fits], packs, max_tokens):
        # As many samples as packs always fit.
        fails, fits, step = fits, max(fits - step, packs), step * 2
    while fails - fits > max(1, fits // _PRECISION):
        middle = (fits + fails) // 2
        if _fits(lengths[:middle], packs, max_tokens):
            fits = middle
        else:
            fails = middle
    return fits


def bounds(lengths: NDArray[np.int64], packs: int, max_tokens: int) -> list[int]:
    """For each sample, an upper bound of the samples from it on that fit, for every way to pack.

    Two things bound it: the number of tokens, and the number of samples of each size class. Of samples longer than
    max_tokens / (k + 1), a pack holds at most k (the dual feasible functions of Fekete and Schepers, "New classes of
    fast lower bounds for bin packing problems", 2001).

    Args:
        lengths: Tokens of each sample, each in [1, max_tokens].
        packs: Number of packs, at least 1.
        max_tokens: Tokens that a pack holds.
    """
    stops = _stops(lengths, packs * max_tokens)
    for most in range(1, _CLASSES + 1):
        whole, rest = np.divmod((most + 1) * lengths, max_tokens)
        weights = np.where(rest == 0, most * whole, (most + 1) * whole)
        np.minimum(stops, _stops(weights, packs * most * (most + 1)), out=stops)
    found: list[int] = (stops - np.arange(len(lengths))).tolist()
    return found


def _stops(weights: NDArray[np.int64], capacity: int) -> NDArray[np.int64]:
    """For each sample, one past the last up to which the weights from it on sum to no more than the capacity."""
    sums = np.concatenate(([0], np.cumsum(weights)))
    return np.searchsorted(sums, sums[:-1] + capacity, side="right") - 1


def _fits(lengths: NDArray[np.int64], packs: int, max_tokens: int) -> bool:
    longest_first = np.sort(lengths)[::-1].tolist()
    return bool(_fullest_first(longest_first, packs, max_tokens) or _emptiest_first(longest_first, packs, max_tokens))


def _emptiest_first(longest_first: Iterable[int], packs: int, max_tokens: int) -> list[int]:
    """The pack of each sample; an empty list where one does not fit."""
    loads = list(range(packs))  # load * packs + number of the pack: a heap of plain integers
    full = max_tokens * packs + packs
    numbers = []
    for length in longest_first:
        load = loads[0] + length * packs
        if load >= full:
            return []
        numbers.append(load % packs)
        heapreplace(loads, load)
    return numbers


def _fullest_first(longest_first: Iterable[int], packs: int, max_tokens: int) -> list[int]:
    """The pack of each sample; an empty list where one does not fit."""
    rooms = [max_tokens * packs + number for number in range(packs)]  # room * packs + number of the pack, ascending
    numbers = []
    for length in longest_first:
        slot = bisect_left(rooms, length * packs)
        if slot == packs:
            return []
        room = rooms.pop(slot)
        numbers.append(room % packs)
        insort(rooms, room - length * packs)
    return numbers
