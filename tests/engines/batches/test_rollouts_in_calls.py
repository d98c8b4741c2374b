"""Rollouts in calls of every kind: divided, handed over and joined, they are the rows that a plain list would be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import twinkle
from twinkle import DeviceGroup, DeviceMesh, concat, remote_class, remote_function
from twinkle.engines import Rollouts

if TYPE_CHECKING:
    from collections.abc import Iterator


@remote_class()
class Holder:
    """Gives back what it is given."""

    @remote_function(dispatch="slice_dp", collect="flatten")
    def joined(self, rollouts: Rollouts) -> Rollouts:
        return rollouts

    @remote_function(dispatch="slice_dp", collect="none")
    def shares(self, rollouts: Rollouts) -> Rollouts:
        return rollouts

    @remote_function(dispatch="all", collect="first")
    def first(self, rollouts: Rollouts) -> Rollouts:
        return rollouts

    @remote_function(dispatch="slice_dp", collect="flatten")
    def inside(self, batch: dict[str, Any]) -> dict[str, Any]:
        return batch


@pytest.fixture(scope="module")
def holders() -> Iterator[tuple[Any, Any]]:
    with twinkle.session("threads", groups=[DeviceGroup("three", 3, "CPU"), DeviceGroup("four", 4, "CPU")]):
        three = twinkle.on("three", DeviceMesh.from_sizes(dp_size=3)).create(Holder)
        yield three, twinkle.on("four", DeviceMesh.from_sizes(dp_size=2, tp_size=2)).create(Holder)


@st.composite
def ragged(draw: st.DrawFn) -> Rollouts:
    counts = draw(st.lists(st.integers(0, 2), max_size=7))
    lengths = draw(st.lists(st.integers(0, 3), min_size=sum(counts), max_size=sum(counts)))
    ids = list(torch.split(torch.arange(sum(lengths)), lengths))
    prompts, rows = [f"p{i}" for i in range(len(counts))], list(range(len(counts)))
    logprobs = [one / 7 for one in ids] if draw(st.booleans()) else None
    return Rollouts(ids, logprobs=logprobs, counts=counts, prompts=prompts, columns={"row": rows})


def plain(rollouts: Rollouts) -> list[Any]:
    """Each row as plain values."""
    return [
        (row.prompts, row.columns, [ids.tolist() for ids in row.ids], [p.tolist() for p in row.logprobs or []])
        for row in rollouts
    ]


@settings(max_examples=30, deadline=None)
@given(rollouts=ragged())
def test_they_come_back_from_every_call(holders: tuple[Any, Any], rollouts: Rollouts) -> None:
    rows = plain(rollouts)
    for holder in holders:
        assert plain(twinkle.get(holder.joined(rollouts))) == rows
        assert plain(twinkle.get(holder.first(rollouts))) == rows
        found = twinkle.get(holder.inside({"rollouts": rollouts, "row": list(range(len(rows)))}))
        assert (plain(found["rollouts"]), found["row"]) == (rows, list(range(len(rows))))


@settings(max_examples=30, deadline=None)
@given(rollouts=ragged())
def test_ranks_get_rows_in_order_and_hand_them_over(holders: tuple[Any, Any], rollouts: Rollouts) -> None:
    three, four = holders
    shares = twinkle.get(three.shares(rollouts))
    size, more = divmod(len(rollouts), 3)
    assert [len(share) for share in shares] == [size + (rank < more) for rank in range(3)]
    assert plain(concat(shares)) == plain(rollouts)
    pairs = twinkle.get(four.shares(three.joined(rollouts)))
    assert [plain(share) for share in pairs[::2]] == [plain(share) for share in pairs[1::2]]
    assert plain(concat(pairs[::2])) == plain(rollouts)
