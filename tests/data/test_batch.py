"""Batches: tuples that keep their place when cut, joined, copied and sent."""

import copy
import itertools
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinkle_data import Batch
from twinkle_remote.rows.concat import concat
from twinkle_remote.rows.cut import rows_of, take

PLACE: dict[str, Any] = {"epoch": 2, "position": 40}


def batch() -> Batch[str]:
    return Batch("abcd", indices=[7, 3, 9, 1], valid=[True, True, False, True], **PLACE)


def parts(value: Batch[Any]) -> tuple[Any, ...]:
    return list(value), value.epoch, value.position, value.indices, value.valid, value.sharded


def test_a_batch_is_a_tuple() -> None:
    assert batch() == ("a", "b", "c", "d")
    assert [*batch()] == list("abcd")
    assert repr(batch()) == "Batch(['a', 'b', 'c', 'd'], epoch=2, position=40, masked=1)"
    own: Any = batch()
    with pytest.raises(AttributeError, match="sort"):
        own.sort()
    with pytest.raises(TypeError, match="item assignment"):
        own[0] = "z"


def test_slices_and_rows_keep_their_place() -> None:
    assert parts(batch()[1:3]) == (["b", "c"], 2, 40, [3, 9], [True, False], False)
    assert parts(batch().take([3, 0])) == (["d", "a"], 2, 40, [1, 7], [True, True], False)
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
    pieces = [take(whole, range(start, stop)) for start, stop in itertools.pairwise(edges)]
    assert all(isinstance(piece, Batch) for piece in pieces)
    assert parts(concat(pieces)) == parts(whole)
    assert rows_of(whole) == length


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="2 samples, 1 indices"):
        Batch("ab", indices=[1], valid=[True, True])
