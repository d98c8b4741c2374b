"""The permutation: exact for every length, the same everywhere, and without visible structure."""

from collections import Counter
from itertools import permutations
from math import factorial, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from twinkle_data.order import ALGORITHM, Permutation

LARGE, SORTED_BELOW = 1_000_003, 1 << 14
KEYS = st.integers(0, 2**64 - 1)


@given(st.integers(0, 3000) | st.integers(SORTED_BELOW - 2, 60_000), KEYS, st.integers(0, 50))
@settings(max_examples=80, deadline=None)
def test_orders_are_bijections(length: int, seed: int, epoch: int) -> None:
    assert np.array_equal(np.sort(Permutation(length, seed, epoch).block(0, length)), np.arange(length))


@given(st.integers(1, 2**62), KEYS, st.data())
@settings(max_examples=60, deadline=None)
def test_any_block_of_any_length(length: int, seed: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, length - 1))
    stop = min(start + 50, length)
    permutation = Permutation(length, seed)
    taken = permutation.block(start, stop)
    assert len(set(taken.tolist())) == stop - start
    assert ((taken >= 0) & (taken < length)).all()
    assert permutation.take(np.arange(start, stop)[::-1]).tolist() == taken[::-1].tolist()


def test_known_answers() -> None:
    """What was once released stays: a change here needs another name in ALGORITHM."""
    assert ALGORITHM == "feistel8-v1"
    assert Permutation(10, 0).block(0, 10).tolist() == [1, 2, 7, 4, 9, 8, 3, 6, 5, 0]
    assert Permutation(10**6, 1, 2).block(0, 5).tolist() == [487942, 8969, 659789, 918305, 114088]
    assert Permutation(2**62, 2**64 - 1, 7).block(2**61, 2**61 + 3).tolist() == [
        1026739107717188438,
        797794920091674532,
        4040008821024552947,
    ]


def chi_squared(observed: NDArray[np.float64], expected: float) -> float:
    """How many standard deviations a chi-squared statistic of many cells is off its mean."""
    freedom = observed.size - 1
    statistic = float(((observed - expected) ** 2 / expected).sum())
    return (statistic - freedom) / sqrt(2 * freedom)


@pytest.mark.parametrize("length", [2, 3, 4, 5])
def test_every_small_permutation_is_as_likely(length: int) -> None:
    trials = 80 * factorial(length)
    counts = Counter(tuple(Permutation(length, 17, epoch).block(0, length).tolist()) for epoch in range(trials))
    observed = np.array([counts[order] for order in permutations(range(length))], dtype=np.float64)
    assert abs(chi_squared(observed, 80.0)) < 5


@pytest.mark.parametrize("length", [SORTED_BELOW - 1, SORTED_BELOW, 100_000, LARGE])
def test_no_lag_correlates(length: int) -> None:
    order = Permutation(length, 5).block(0, length).astype(np.float64)
    centred = (order - order.mean()) / order.std()
    for lag in (1, 2, 3, 7, 64, 127, 128, 129, 1000, 1001):
        correlation = float((centred[:-lag] * centred[lag:]).mean())
        assert abs(correlation) < 5 / sqrt(length), lag


@pytest.mark.parametrize("length", [SORTED_BELOW, 50_000, LARGE])
def test_positions_and_values_are_independent(length: int) -> None:
    order = Permutation(length, 9).block(0, length)
    cells = 32
    table, _, _ = np.histogram2d(np.arange(length), order, bins=cells)
    assert abs(chi_squared(table, length / cells**2)) < 5
    steps, _ = np.histogram(np.diff(order) % length, bins=256)
    assert abs(chi_squared(steps.astype(np.float64), (length - 1) / 256)) < 5


def test_low_bits_of_neighbours_are_independent() -> None:
    order = Permutation(1 << 20, 3).block(0, 1 << 20)
    pairs = np.bincount((order[:-1] & 15) * 16 + (order[1:] & 15), minlength=256).astype(np.float64)
    assert abs(chi_squared(pairs, pairs.sum() / 256)) < 5


@pytest.mark.parametrize("length", [50, 20_000])
def test_seeds_epochs_and_lengths_give_unrelated_orders(length: int) -> None:
    reference = Permutation(length, 1, 0).block(0, length - 1)
    others = [
        Permutation(length, 2, 0),
        Permutation(length, 1, 1),
        Permutation(length, 0, 1),
        Permutation(length - 1, 1),
    ]
    for other in others:
        fixed = int((reference == other.block(0, length - 1)).sum())
        assert fixed <= 10, "unrelated orders agree in about one place"
