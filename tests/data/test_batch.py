"""Batches: lists that keep their place when cut, joined, copied and sent."""

import bisect
import copy
import itertools
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
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
    with pytest.raises(ValueError, match="2 samples, 1 indices"):
        Batch("ab", indices=[1])


CHANGES: dict[str, Callable[[Any], object]] = {
    "sort": lambda rows: rows.sort(key=len, reverse=True),
    "reverse": lambda rows: rows.reverse(),
    "pop": lambda rows: rows.pop(1),
    "pop last": lambda rows: rows.pop(),
    "remove": lambda rows: rows.remove(rows[-1]),
    "del": lambda rows: rows.__delitem__(0),
    "del slice": lambda rows: rows.__delitem__(slice(None, None, 2)),
    "clear": lambda rows: rows.clear(),
    "shuffle": lambda rows: random.Random(4).shuffle(rows),
    "numpy": lambda rows: np.random.default_rng(4).shuffle(rows),
    "append": lambda rows: rows.append([9]),
    "extend": lambda rows: rows.extend([[9]]),
    "+=": lambda rows: rows.__iadd__([[9]]),
    "*=": lambda rows: rows.__imul__(2),
    "insert": lambda rows: rows.insert(0, [9]),
    "insort": lambda rows: bisect.insort(rows, [9]),
    "slice": lambda rows: rows.__setitem__(slice(None), sorted(rows, reverse=True)),
    "shorter": lambda rows: rows.__setitem__(slice(0, 2), [[9]]),
    "row": lambda rows: rows.__setitem__(0, rows[-1]),
}


@pytest.mark.parametrize("name", CHANGES)
@given(st.lists(st.lists(st.integers(0, 2), max_size=3), min_size=2, max_size=6, unique_by=tuple), st.data())
@settings(max_examples=20, deadline=None)
def test_what_changes_a_batch_changes_its_indices_or_is_refused(
    name: str, rows: list[list[int]], data: st.DataObject
) -> None:
    valid = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    batch, plain = Batch(rows, indices=range(10, 10 + len(rows)), valid=valid), list(rows)
    before = parts(batch)
    refused = ""
    try:
        CHANGES[name](batch)
    except TypeError as error:
        refused = str(error)
    if refused:
        assert "indices" in refused
        assert parts(batch) == before
    else:
        CHANGES[name](plain)
        assert batch == plain
    for row, index, flag in zip(batch, batch.indices, batch.valid, strict=True):
        assert row is rows[index - 10]
        assert flag is valid[index - 10]


def test_rows_may_be_replaced_in_place() -> None:
    own = batch()
    own[0] = "tokens"
    own[1:3] = ["x", "y"]
    own[::-1] = [row.upper() for row in reversed(own)]
    own[2] = own[2]
    assert parts(own)[0] == ["TOKENS", "X", "Y", "D"]
    assert parts(own)[1:] == parts(batch())[1:]
    own.permute([3, 0, 1, 2])
    assert (list(own), own.indices) == (["D", "TOKENS", "X", "Y"], [1, 7, 3, 9])
    assert own.valid == [True, True, True, False]
    with pytest.raises(ValueError, match="once"):
        own.permute([0, 0, 1, 2])
    with pytest.raises(ZeroDivisionError):
        own.sort(key=lambda row: 1 / 0)
    assert list(own) == ["D", "TOKENS", "X", "Y"]


def test_a_batch_that_a_library_rebuilds_by_its_type_does_not_lose_its_mask() -> None:
    """accelerate and Transformers call type(batch)(rows), which has no place for indices and flags."""
    for rows in ([1], ["a", "b"], iter([1, 2]), batch()):
        with pytest.raises(TypeError, match="indices="):
            Batch(rows)
    assert parts(Batch([])) == parts(Batch()) == parts(type(batch())(iter(())))
