"""Mixtures: exact shares, every dataset gone through evenly, any position found at once."""

import random
import warnings
from collections import Counter
from typing import Any

import datasets
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinkle_data import Batch, DataLoader, Mixture, StateMismatchError
from twinkle_data.order.permutation import Permutation, small_permutations
from twinkle_data.sources.indexed import Objects
from twinkle_data.sources.mixing import BLOCK, MixedOrder, MixedSource
from twinkle_mesh import DeviceMesh, use_rank


def three(**options: Any) -> Mixture:
    parts = {"code": list(range(1000)), "web": list(range(5000)), "math": list(range(50))}
    return Mixture(parts, {"code": 2, "web": 7, "math": 1}, **options)


def test_shares_are_exact_in_every_block() -> None:
    mixture = three(epoch_length=3 * BLOCK)
    loader: DataLoader[Batch[int]] = DataLoader(mixture, batch_size=BLOCK, shuffle=True)
    for batch in loader:
        counts = Counter(mixture.locate(index)[0] for index in batch.indices)
        assert {name: counts[name] / BLOCK for name in counts} == mixture.shares()
    assert mixture.shares() == pytest.approx({"code": 0.2, "web": 0.7, "math": 0.1}, abs=1 / BLOCK)


def test_samples_belong_to_their_indices() -> None:
    mixture = three()
    for batch in DataLoader(mixture, batch_size=50, shuffle=True):
        assert list(batch) == [mixture.locate(index)[1] for index in batch.indices]


@given(
    st.lists(st.tuples(st.integers(1, 300), st.floats(0.01, 10)), min_size=1, max_size=5),
    st.integers(1, 5000),
    st.integers(0, 2**64 - 1),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_a_dataset_is_gone_through_before_it_comes_again(
    parts: list[tuple[int, float]], epoch_length: int, seed: int, shuffle: bool
) -> None:
    mixture = Mixture(
        {str(number): range(length) for number, (length, _) in enumerate(parts)},
        {str(number): weight for number, (_, weight) in enumerate(parts)},
        epoch_length=epoch_length,
    )
    order = MixedOrder(mixture.lengths, mixture.quotas, epoch_length, seed, shuffle=shuffle)
    positions = np.arange(epoch_length)
    run = np.concatenate([order.take(epoch, positions) for epoch in range(3)]).tolist()
    drawn: dict[str, list[int]] = {}
    for index in run:
        name, local = mixture.locate(index)
        drawn.setdefault(name, []).append(local)
    for name, indices in drawn.items():
        length = mixture.lengths[int(name)]
        for start in range(0, len(indices), length):
            once = indices[start : start + length]
            assert len(set(once)) == len(once)
            assert shuffle or once == list(range(len(once)))


def test_any_position_is_found_at_once() -> None:
    order = MixedOrder((10**9, 10**6), (4000, 96), 10**10, 7, shuffle=True)
    whole = order.take(2, np.arange(5 * 10**9, 5 * 10**9 + 6000))
    parts = [order.take(2, np.arange(5 * 10**9 + start, 5 * 10**9 + start + 100)) for start in range(0, 6000, 100)]
    assert np.array_equal(whole, np.concatenate(parts))


def test_a_mixture_resumes_on_other_ranks() -> None:
    whole = [list(batch.indices) for batch in DataLoader(three(), batch_size=50, shuffle=True)]
    loader: DataLoader[Batch[int]] = DataLoader(three(), batch_size=100, shuffle=True)
    next(loader)
    mesh = DeviceMesh.from_sizes(dp_size=2)
    rows = []
    for rank in range(2):
        with use_rank(rank):
            half: DataLoader[Batch[int]] = DataLoader(three(), batch_size=50, shuffle=True, device_mesh=mesh)
            half.load_state_dict(loader.state_dict())
            rows.append([batch.indices for batch in half])
    assert [left + right for left, right in zip(*rows, strict=True)] == whole[2:]


def test_other_weights_are_another_order() -> None:
    state = DataLoader(three(), batch_size=50).state_dict()
    other = Mixture({"code": list(range(1000)), "web": list(range(5000)), "math": list(range(50))})
    with pytest.raises(StateMismatchError, match="fingerprint"):
        DataLoader(other, batch_size=50).load_state_dict(state)


def test_a_replacement_comes_from_the_same_dataset() -> None:
    class Torn:
        def __len__(self) -> int:
            return 50

        def __getitem__(self, index: int) -> int:
            if index % 2:
                raise ValueError("torn")
            return index

    mixture = Mixture({"good": list(range(500)), "torn": Torn()}, {"good": 1, "torn": 1})
    plain = DataLoader(Mixture({"good": list(range(500)), "torn": range(50)}, {"good": 1, "torn": 1}), batch_size=25)
    for batch, expected in zip(DataLoader(mixture, batch_size=25, on_error="replace"), plain, strict=True):
        assert [mixture.locate(index)[0] for index in batch.indices] == [
            mixture.locate(index)[0] for index in expected.indices
        ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({},), "at least one dataset"),
        (({"a": []},), "are empty: a"),
        (({"a": [1]}, {"b": 1.0}), r"one for each of \['a'\]"),
        (({"a": [1]}, {"a": 0.0}), "must be above 0"),
    ],
)
def test_mixtures_are_checked(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Mixture(*arguments)
    with pytest.raises(TypeError, match=r"datasets .*by name.*a list"):
        Mixture([[1, 2], [3]])  # type: ignore[arg-type]  # on purpose
    with pytest.raises(TypeError, match=r"weights .*by name.*a list"):
        Mixture({"a": [1, 2]}, [1.0])  # type: ignore[arg-type]  # on purpose
    with pytest.raises(ValueError, match="epoch_length=0"):
        Mixture({"a": [1]}, epoch_length=0)


def test_locate_is_bounded() -> None:
    with pytest.raises(IndexError, match=r"outside \[0, 6049\]"):
        three().locate(6050)


class Table:
    """Reads several rows at once."""

    def __init__(self, name: str, length: int) -> None:
        self.name = name
        self.length = length
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[str, int]:
        raise AssertionError("rows are read together")

    def __getitems__(self, indices: list[int]) -> list[tuple[str, int]]:
        self.asked.append(len(indices))
        return [(self.name, index) for index in indices]


class Single:
    """Reads one row, and draws for it."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[str, int, float]:
        return "one", index, random.random()


def test_each_dataset_of_a_mixture_is_read_as_it_likes() -> None:
    left, right = Table("left", 100), Table("right", 60)
    mixture = Mixture({"left": left, "list": [("list", place) for place in range(80)], "right": right, "one": Single()})
    rows: list[list[Any]] = []
    for size in (50, 25):
        batches = list(DataLoader(mixture, batch_size=size, shuffle=True, tail="short"))
        for batch in batches:
            assert [sample[:2] for sample in batch] == [mixture.locate(index) for index in batch.indices]
        rows.append([sample for batch in batches for sample in batch])
    assert rows[0] == rows[1], "what one draws depends on the sample alone"
    assert len(left.asked) == 1 + 6 + 1 + 12, "once a step; the first sample of all is tried alone"


def test_hugging_face_datasets_are_read_together() -> None:
    one = datasets.Dataset.from_dict({"a": list(range(100))})
    source = MixedSource(Mixture({"one": one, "two": one.map(lambda row: {"a": -row["a"]})}))
    assert source.plain, "nothing of the user's runs, so that nothing is seeded"
    values = [row["a"] for row in next(DataLoader(Mixture({"one": one}), batch_size=100))]
    assert sorted(values) == list(range(100))
    drawing = Objects(one.with_transform(lambda rows: {"a": [random.random() for _ in rows["a"]]}))
    assert not drawing.plain


@given(st.integers(1, 1000), st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**40), min_size=1, max_size=5))
@settings(max_examples=30, deadline=None)
def test_permutations_of_small_datasets_are_the_same_many_at_once(length: int, seed: int, epochs: list[int]) -> None:
    rows = small_permutations(length, seed, np.array(epochs))
    assert rows.tolist() == [Permutation(length, seed, epoch).block(0, length).tolist() for epoch in epochs]


def test_a_share_that_rounds_to_nothing_is_warned_of() -> None:
    big, small = range(100_000), range(10)
    with pytest.warns(RuntimeWarning, match=r"'small' .*2.44 times"):
        mixture = Mixture({"big": big, "small": small})
    assert mixture.shares()["small"] == 1 / BLOCK
    with pytest.warns(RuntimeWarning, match="'small'"):
        Mixture({"big": big, "small": small}, {"big": 1.0, "small": 1e-9})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Mixture({"big": big, "small": small}, {"big": BLOCK - 1, "small": 1})
        Mixture({"big": big, "small": range(20)})
