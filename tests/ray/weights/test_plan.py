from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import Replicate
from torch.distributed.tensor import Shard as OnDim
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from twinkle_ray.weights.boxes import Box
from twinkle_ray.weights.errors import ManifestError
from twinkle_ray.weights.manifest import item_size
from twinkle_ray.weights.plan import LEAST_BLOCK_BYTES, Location, SyncPlan, make_plan
from twinkle_ray.weights.shards import RankSpecs, TensorSpec, placed_boxes
from twinkle_ray.weights.transport.packing import empty_parts, slots_of, views

if TYPE_CHECKING:
    from collections.abc import Sequence

MIB = 1 << 20


def spec(name: str, shape: Sequence[int], boxes: Sequence[Box], dtype: str = "float32", tie: str = "") -> TensorSpec:
    return TensorSpec(name, dtype, tuple(shape), tuple(boxes), tie or name)


def whole(name: str, *shape: int, dtype: str = "float32", tie: str = "") -> TensorSpec:
    return spec(name, shape, [Box.whole(shape)], dtype, tie)


def sent_by(plan: SyncPlan, ranks: int) -> list[int]:
    """Bytes that leave each source rank; a block counts once, however many ranks receive it."""
    return [sum(one.nbytes for one in plan.transfers if one.source == rank) for rank in range(ranks)]


def received(plan: SyncPlan, ranks: int) -> list[int]:
    """Bytes that arrive at each target rank."""
    totals = [0] * ranks
    for transfer in plan.transfers:
        for rank in transfer.targets:
            totals[rank] += transfer.nbytes
    return totals


@st.composite
def sides(draw: st.DrawFn, shapes: Sequence[tuple[int, ...]], stages: bool) -> list[RankSpecs]:
    """One side: a torch mesh, placements of each tensor, and tensors on some pipeline stages only."""
    mesh = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    pp = draw(st.integers(1, 2)) if stages else 1
    all_specs: list[RankSpecs] = []
    laid: list[list[Placement]] = []
    for shape in shapes:
        on_dim = [Replicate(), *(OnDim(dim) for dim in range(len(shape)))]
        strided = [_StridedShard(dim, split_factor=2) for dim in range(len(shape))]
        laid.append([draw(st.sampled_from([*on_dim, *strided])) for _ in mesh])
    for stage in range(pp):
        for where in itertools.product(*map(range, mesh)):
            all_specs.append(
                tuple(
                    spec(f"t{i}", shape, [box for box in placed_boxes(shape, mesh, where, laid[i]) if box.volume])
                    for i, shape in enumerate(shapes)
                    if i % pp == stage
                )
            )
    return all_specs


@st.composite
def transfers(draw: st.DrawFn) -> tuple[list[tuple[int, ...]], list[RankSpecs], list[RankSpecs]]:
    shape = st.lists(st.integers(0, 7), min_size=0, max_size=3).map(tuple)
    shapes = draw(st.lists(shape, min_size=1, max_size=4))
    return shapes, draw(sides(shapes, stages=True)), draw(sides(shapes, stages=True))


def arrivals(
    plan: SyncPlan, shapes: Sequence[tuple[int, ...]], source: Sequence[RankSpecs], target: Sequence[RankSpecs]
) -> None:
    """Run a plan on counters: every element of every target rank arrives once, from a rank that has it; no others."""
    holders = [{spec.name: spec.boxes for spec in rank_specs} for rank_specs in source]
    counts = [{spec.name: np.zeros(spec.shape, dtype=int) for spec in rank_specs} for rank_specs in target]
    for transfer in plan.transfers:
        for move in transfer.moves:
            entry = plan.entries[move.entry]
            assert any(move.box.within(box) for box in holders[transfer.source][entry.source])
            for rank in transfer.targets:
                counts[rank][entry.targets[0]][move.box.inside(Box.whole(entry.shape))] += 1
    for rank_specs, counted in zip(target, counts, strict=True):
        for tensor in rank_specs:
            expected = np.zeros(tensor.shape, dtype=int)
            for box in tensor.boxes:
                expected[box.inside(Box.whole(tensor.shape))] = 1
            assert (counted[tensor.name] == expected).all()
    own = [4 * sum(box.volume for tensor in rank_specs for box in tensor.boxes) for rank_specs in target]
    assert received(plan, len(target)) == own


@given(transfers(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_every_target_rank_receives_its_own_elements_once_and_no_others(
    transfer: tuple[list[tuple[int, ...]], list[RankSpecs], list[RankSpecs]], near: bool
) -> None:
    shapes, source, target = transfer
    locations = ([Location(f"p{i % 3}", f"h{i % 2}") for i in range(len(side))] for side in (source, target))
    source_locations, target_locations = locations if near else (None, None)
    plan = make_plan(source, target, source_locations=source_locations, target_locations=target_locations)
    arrivals(plan, shapes, source, target)
    again = make_plan(source, target, source_locations=source_locations, target_locations=target_locations)
    assert again == plan


@given(
    st.integers(1, 8),
    st.lists(st.integers(1, 3 * MIB), min_size=1, max_size=60),
    st.integers(1, 3),
)
@settings(max_examples=100, deadline=None)
def test_replicas_share_the_sending(replicas: int, sizes: list[int], receivers: int) -> None:
    rank_specs = tuple(whole(f"t{i}", size, dtype="uint8") for i, size in enumerate(sizes))
    plan = make_plan([rank_specs] * replicas, [rank_specs] * receivers, block_bytes=16 * MIB)
    sent = sent_by(plan, replicas)
    assert sum(sent) == sum(sizes)
    assert max(sent) - min(sent) <= LEAST_BLOCK_BYTES or max(sent) <= sum(sizes) / replicas * 1.15
    assert max(sent) <= sum(sizes) / replicas + max(LEAST_BLOCK_BYTES, max(sizes) if replicas == 1 else 0)


@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=20), st.sampled_from(["float32", "bfloat16", "uint8"]))
@settings(max_examples=60, deadline=None)
def test_blocks_lie_apart_in_the_memory_of_their_transfer(sizes: list[int], dtype: str) -> None:
    blocks = [((size,), dtype, size * item_size(dtype)) for size in sizes]
    slots = slots_of(blocks)
    parts = empty_parts(slots, torch.device("cpu"))
    for number, view in enumerate(views(slots, parts)):
        assert (view.shape == (sizes[number],) and view.data_ptr() % 16 == 0) or not view.numel()
        view.fill_(number % 100)
    assert [set(view.tolist()) <= {number % 100} for number, view in enumerate(views(slots, parts))] == [True] * len(
        sizes
    )


def test_the_nearest_owner_sends() -> None:
    rank_specs = (whole("w", 4),)
    sources = [Location("p0", "h0"), Location("p1", "h0"), Location("p2", "h1")]
    targets = [Location("p1", "h0"), Location("p3", "h1"), Location("p4", "h2")]
    plan = make_plan([rank_specs] * 3, [rank_specs] * 3, source_locations=sources, target_locations=targets)
    assert {(transfer.source, transfer.targets, transfer.distance) for transfer in plan.transfers} == {
        (1, (0,), "process"),
        (2, (1,), "host"),
        (0, (2,), "far"),
    }


def test_a_hole_is_refused() -> None:
    source = [(spec("w", (8,), [Box((0,), (3,))]),), (spec("w", (8,), [Box((5,), (3,))]),)]
    target = [(spec("w", (8,), [Box((0,), (4,))]),), (spec("w", (8,), [Box((4,), (4,))]),)]
    with pytest.raises(ManifestError, match=r"\[3:4\] of 'w'"):
        make_plan(source, target)


def test_huge_tensors_are_cut_and_zero_sized_ones_move_nothing() -> None:
    rank_specs = (whole("huge", 3, 1 << 33, dtype="bfloat16"), spec("none", (0, 5), []), whole("scalar"))
    plan = make_plan([rank_specs], [rank_specs], block_bytes=1 << 30)
    moves = [move for transfer in plan.transfers for move in transfer.moves]
    assert max(move.box.volume * item_size(plan.entries[move.entry].wire) for move in moves) <= 1 << 30
    assert received(plan, 1) == [3 * (1 << 34) + 4]
    assert {move.entry for move in moves} == {0, 2}
