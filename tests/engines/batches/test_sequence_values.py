"""Values by sequence: a list whose rows are those of the batch, for dispatch, collect and the wire."""

from __future__ import annotations

import pickle
from copy import copy, deepcopy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from twinkle_engines.batches.sequence_values import SequenceValues, SequenceValuesSplitter
from twinkle_remote import take
from twinkle_remote.values import TYPES, rows_of

COUNTS = st.lists(st.integers(0, 3), max_size=6)


def values(counts: list[int]) -> SequenceValues:
    return SequenceValues([torch.tensor([float(i)]) for i in range(sum(counts))], counts)


def numbers(found: SequenceValues) -> list[float]:
    return [one.item() for one in found]


@given(counts=COUNTS, data=st.data())
def test_rows_are_the_sequences_of_the_rows(counts: list[int], data: st.DataObject) -> None:
    whole, splitter = values(counts), SequenceValuesSplitter()
    rows = data.draw(st.permutations(range(len(counts))))
    cut = data.draw(st.integers(0, len(counts)))
    ends = [sum(counts[:row]) for row in range(len(counts) + 1)]
    expected = [float(i) for row in rows for i in range(ends[row], ends[row + 1])]
    picked = take(whole, rows)
    assert (numbers(picked), picked.counts) == (expected, [counts[row] for row in rows])
    back = take(picked, [list(rows).index(row) for row in range(len(counts))])
    assert (numbers(back), back.counts) == (numbers(whole), counts)
    parts = [splitter.slice(whole, 0, cut), splitter.slice(whole, cut, len(counts))]
    joined = splitter.concat(parts)
    assert (numbers(joined), joined.counts, rows_of(whole)) == (numbers(whole), counts, len(counts))


def test_it_is_a_list_and_travels() -> None:
    one = values([2, 0, 1])
    assert isinstance(one, list) and SequenceValues([]) == []
    plain = TYPES.plain(SequenceValues)
    assert plain is not None
    for made in (copy(one), deepcopy(one), pickle.loads(pickle.dumps(one)), plain[1](plain[0](one))):
        assert type(made) is SequenceValues
        assert (numbers(made), made.counts) == ([0.0, 1.0, 2.0], [2, 0, 1])
    for wrong in (3, [[1], [1]], [[torch.ones(1)], [2]], [[torch.ones(1)], [True]]):
        with pytest.raises(ValueError, match="sequence"):
            plain[1](wrong)
    with pytest.raises(ValueError, match="counts"):
        SequenceValues([torch.ones(1)], [2])
