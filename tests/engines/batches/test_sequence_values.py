"""Values by sequence: a list whose rows are those of the batch, for dispatch, collect and the wire."""

from __future__ import annotations

import pickle
import random
from copy import copy, deepcopy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from twinkle_engines import Rollouts
from twinkle_engines.batches.sequence_values import SequenceValues, SequenceValuesSplitter
from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import on, remote_class, remote_function, session, take
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


@remote_class()
class Doubling:
    """Computes for each sequence, as `TransformersModel.logprobs` does."""

    def __init__(self, balance: bool = True) -> None:
        pass

    @remote_function("slice_dp", collect="flatten", balance="balance", reads=lambda: ("ids", "temperatures"))
    def double(self, batch: Rollouts) -> SequenceValues:
        return SequenceValues([2.0 * one for one in batch.ids], batch.counts)

    @remote_function("slice_dp", collect="flatten", balance="balance")
    def same(self, batch: Rollouts) -> Rollouts:
        return batch

    @remote_function("slice_dp", collect="flatten", balance="balance")
    def matched(self, batch: Rollouts, values: SequenceValues) -> list[bool]:
        pairs = zip(batch.ids, values, strict=True)
        return [all(torch.equal(2.0 * ids, value) for ids, value in pairs)] * len(batch)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_balanced_calls_return_what_others_return(ranks: int) -> None:
    draw = random.Random(ranks)
    mesh = DeviceMesh.from_sizes(dp_size=ranks, device_type="cpu")
    with session("threads", groups=[DeviceGroup("group", ranks, "CPU")]):
        balanced, plain = (on("group", mesh).create(Doubling, balance) for balance in (True, False))
        for _ in range(20):
            counts = [draw.randrange(4) for _ in range(draw.randrange(9))]
            ids = [torch.arange(draw.randrange(1, 40)) for _ in range(sum(counts))]
            batch = Rollouts(ids, counts=counts, logprobs=ids, prompts=["x"] * len(counts))
            expected = [(2.0 * one).tolist() for one in ids]
            for component in (balanced, plain):
                for given_batch in (batch, balanced.same(batch), plain.same(batch)):
                    found = component.double(given_batch)
                    assert [one.tolist() for one in found] == expected
                    assert all(component.matched(given_batch, found))


def test_it_is_a_list_and_travels() -> None:
    one = values([2, 0, 1])
    assert SequenceValues([]) == []
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
