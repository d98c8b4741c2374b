"""The permutation: exact, the same everywhere, and without visible structure."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from twinkle_data.permutation import SORTED_BELOW, Permutation


@given(st.integers(0, 3000), st.integers(0, 2**64 - 1), st.integers(0, 50))
@settings(max_examples=60)
def test_small_lengths_are_bijections(length: int, seed: int, epoch: int) -> None:
    assert sorted(Permutation(length, seed, epoch).block(0, length).tolist()) == list(range(length))


@given(st.integers(SORTED_BELOW - 2, 60_000), st.integers(0, 2**64 - 1))
@settings(max_examples=25)
def test_feistel_lengths_are_bijections(length: int, seed: int) -> None:
    taken = np.sort(Permutation(length, seed).block(0, length))
    assert np.array_equal(taken, np.arange(length))
