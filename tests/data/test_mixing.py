"""Mixtures: exact shares of an epoch, every dataset gone through evenly, resumed anywhere."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinkle_data import DataLoader, Mixture, StateMismatchError
from twinkle_data.order import MixedOrder, Permutation, derive, derive_each, small_permutations


def three() -> Mixture:
    parts = {"code": list(range(1000)), "web": list(range(5000)), "math": list(range(50))}
    return Mixture(parts, {"code": 2, "web": 7, "math": 1})


def test_shares_are_exact_in_an_epoch() -> None:
    mixture = three()
    loader: DataLoader[Any] = DataLoader(mixture, batch_size=50, shuffle=True)
    for _ in range(2):
        counts = Counter[str]()
        for batch in loader:
            places = [mixture.locate(index) for index in batch.indices]
            assert list(batch) == [row for _, row in places]
            counts.update(name for name, _ in places)
        assert counts == {"code": 1210, "web": 4235, "math": 605}


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 900)), min_size=1, max_size=5),
    st.integers(0, 2**64 - 1),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_a_dataset_is_gone_through_before_it_comes_again(
    parts: list[tuple[int, int]], seed: int, shuffle: bool
) -> None:
    lengths, shares = [length for length, _ in parts], [share for _, share in parts]
    order = MixedOrder(lengths, shares, seed, shuffle=shuffle)
    run = np.concatenate([order.block(epoch, 0, order.length) for epoch in range(3)])
    for begin, length, share in zip(np.cumsum([0, *lengths]), lengths, shares, strict=False):
        drawn = [index - begin for index in run.tolist() if begin <= index < begin + length]
        assert len(drawn) == 3 * share
        for start in range(0, len(drawn), length):
            once = drawn[start : start + length]
            assert len(set(once)) == len(once)
            assert shuffle or once == list(range(len(once)))


def test_other_weights_are_another_order() -> None:
    state = DataLoader(three(), batch_size=50).state_dict()
    other = Mixture({"code": list(range(1000)), "web": list(range(5000)), "math": list(range(50))})
    with pytest.raises(StateMismatchError, match="fingerprint"):
        DataLoader(other, batch_size=50).load_state_dict(state)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({},), "not empty"),
        (({"a": []},), "not empty"),
        (({"a": [1]}, {"b": 1.0}), r"each of \['a'\]"),
        (({"a": [1]}, {"a": 0.0}), "weight above 0"),
        (({"a": [1]}, {"a": float("inf")}), "finite"),
    ],
)
def test_mixtures_are_checked(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Mixture(*arguments)
    with pytest.raises(TypeError, match="a stream"):
        Mixture({"a": lambda: iter([1])})
    with pytest.raises(IndexError, match=r"outside \[0, 6049\]"):
        three().locate(6050)


@given(st.integers(1, 1000), st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**40), min_size=1, max_size=5))
@settings(max_examples=30, deadline=None)
def test_permutations_of_small_datasets_are_the_same_many_at_once(length: int, seed: int, epochs: list[int]) -> None:
    rows = small_permutations(length, derive_each(derive(length, seed), np.array(epochs, dtype=np.uint64)))
    assert rows.tolist() == [Permutation(length, seed, epoch).block(0, length).tolist() for epoch in epochs]
