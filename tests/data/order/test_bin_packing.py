"""Bin packing: everything in a pack once, and as many samples in a row as fit."""

from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from twinkle_data.order.bin_packing import bounds, most_rows, pack


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(1, 8), st.integers(40, 120))
@settings(max_examples=100, deadline=None)
def test_packs_hold_everything_once(lengths: list[int], packs: int, max_tokens: int) -> None:
    bins = pack(lengths, packs, max_tokens)
    if bins is None:
        assert sum(lengths) > packs * (max_tokens - 40), "only what nearly fills the packs does not fit"
        return
    assert len(bins) == packs
    assert sorted(sample for own in bins for sample in own) == list(range(len(lengths)))
    assert all(sum(lengths[sample] for sample in own) <= max_tokens for own in bins)
    assert all(own == sorted(own) for own in bins)


@given(st.lists(st.integers(1, 12), max_size=7), st.integers(1, 3), st.just(12))
@settings(max_examples=100, deadline=None)
def test_no_way_to_pack_exceeds_the_bounds(lengths: list[int], packs: int, max_tokens: int) -> None:
    for start, most in enumerate(bounds(np.array(lengths, dtype=np.int64), packs, max_tokens)):
        fitting = 0
        while start + fitting < len(lengths) and _fit(lengths[start : start + fitting + 1], packs, max_tokens):
            fitting += 1
        assert fitting <= most <= len(lengths) - start


def _fit(lengths: list[int], packs: int, max_tokens: int) -> bool:
    """Whether any way of all fits."""
    return any(
        all(
            sum(length for length, own in zip(lengths, ways, strict=True) if own == number) <= max_tokens
            for number in range(packs)
        )
        for ways in product(range(packs), repeat=len(lengths))
    )


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(1, 8), st.integers(40, 120))
@settings(max_examples=100, deadline=None)
def test_one_sample_more_does_not_fit(lengths: list[int], packs: int, max_tokens: int) -> None:
    sizes = np.array(lengths, dtype=np.int64)
    sizes = sizes[: bounds(sizes, packs, max_tokens)[0]]
    many = most_rows(sizes, packs, max_tokens)
    assert pack(sizes[:many], packs, max_tokens) is not None
    assert many == len(sizes) or pack(sizes[: many + 1], packs, max_tokens) is None


def test_bounds_know_how_many_long_samples_a_pack_holds() -> None:
    long = np.full(100, 51)
    assert bounds(long, 8, 100)[0] == 8, "two of more than a half do not fit"
    assert bounds(np.full(100, 34), 8, 100)[0] == 16, "nor do three of more than a third"
    assert bounds(np.full(100, 50), 8, 100)[0] == 16, "two halves do"
