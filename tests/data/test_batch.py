"""Batches: lists that keep their place when cut, joined, copied and sent."""

import copy
import itertools
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinkle_data import Batch
from twinkle_remote.values.join import join
from twinkle_remote.values.rows import rows_of, take

PLACE: dict[str, Any] = {"epoch": 2, "position": 40}


def batch() -> Batch[str]:
    return Batch("abcd", indices=[7, 3, 9, 1], valid=[True, True, False, True], **PLACE)


def parts(value: Batch[Any]) -> tuple[Any, ...]:
    return list(value), value.epoch, value.position, value.indices, value.valid, value.sharded


def test_a_batch_is_a_list() -> None:
    assert batch() == ["a", "b", "c", "d"]
    assert [*batch()] == list("abcd")
    assert repr(batch()) == "Batch(['a', 'b', 'c', 'd'], epoch=2, position=40, masked=1)"
    assert parts(Batch()) == ([], 0, 0, [], [], False)


def test_slices_keep_their_place() -> None:
    assert parts(batch()[1:3]) == (["b", "c"], 2, 40, [3, 9], [True, False], False)
    assert batch()[-1] == "d"


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_copies_keep_their_place(duplicate: Any) -> None:
    original = Batch(["a"], indices=[5], valid=[False], sharded=True, **PLACE)
    assert parts(duplicate(original)) == parts(original)
    assert type(duplicate(original)) is Batch


@given(st.integers(0, 9), st.lists(st.integers(0, 9), max_size=4))
def test_dispatch_and_collect_keep_everything(length: int, cuts: list[int]) -> None:
    whole = Batch(range(length), indices=range(50, 50 + length), valid=[row % 3 > 0 for row in range(length)], **PLACE)
    edges = [0, *sorted(min(cut, length) for cut in cuts), length]
    pieces = [take(whole, start, stop) for start, stop in itertools.pairwise(edges)]
    assert all(isinstance(piece, Batch) for piece in pieces)
    assert parts(join(pieces)) == parts(whole)
    assert rows_of(whole) == length


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="got 2 samples, 1 indices and 2 flags"):
        Batch("ab", indices=[1])
