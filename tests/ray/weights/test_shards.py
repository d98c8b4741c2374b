from __future__ import annotations

import itertools
from math import prod
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.distributed.tensor import Shard as OnDim
from torch.distributed.tensor.placement_types import Placement, _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from twinkle_ray.weights import Shard
from twinkle_ray.weights.boxes import Box
from twinkle_ray.weights.shards import hold, placed_boxes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def rows_by_torch(
    values: torch.Tensor, mesh: tuple[int, ...], where: tuple[int, ...], placements: list[Placement]
) -> torch.Tensor:
    """What torch itself splits off, dim by dim: the oracle."""
    for size, index, placement in zip(mesh, where, placements, strict=True):
        if isinstance(placement, OnDim | _StridedShard):
            parts, _ = placement._split_tensor(values, size, with_padding=False)
            values = parts[index]
    return values


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], list[Placement]]:
    shape = tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=2)))
    mesh = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    placements: list[Placement] = []
    for _ in mesh:
        dim = draw(st.integers(0, len(shape) - 1))
        strided = _StridedShard(dim, split_factor=draw(st.integers(1, 3)))
        placements.append(draw(st.sampled_from([Replicate(), OnDim(dim), strided])))
    return shape, mesh, placements


@given(layouts())
@settings(max_examples=120, deadline=None)
def test_boxes_of_a_placement_are_those_that_torch_splits(
    layout: tuple[tuple[int, ...], tuple[int, ...], list[Placement]],
) -> None:
    shape, mesh, placements = layout
    values = torch.arange(prod(shape)).reshape(shape)
    for where in itertools.product(*map(range, mesh)):
        local = rows_by_torch(values, mesh, where, placements)
        boxes = placed_boxes(shape, mesh, where, placements)
        assert sum(box.volume for box in boxes) == local.numel()
        got = sorted(int(v) for box in boxes for v in values[box.inside(Box.whole(shape))].flatten())
        assert got == sorted(local.flatten().tolist())


@pytest.fixture
def fake_world() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=5, world_size=8)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("fake_world")
def test_a_dtensor_is_read_with_its_blocks_in_place() -> None:
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
    whole = torch.arange(8.0 * 6).reshape(8, 6)
    local = whole[3:4].clone()
    uneven = torch.arange(6.0 * 6).reshape(6, 6)[2:4, 3:6].clone()
    held = hold(
        {
            "fsdp+tp": DTensor.from_local(
                local,
                mesh,
                [_StridedShard(0, split_factor=4), OnDim(0)],
                run_check=False,
                shape=torch.Size((8, 6)),
                stride=(6, 1),
            ),
            "uneven": DTensor.from_local(
                uneven, mesh, [OnDim(1), OnDim(0)], run_check=False, shape=torch.Size((6, 6)), stride=(6, 1)
            ),
            "replicated": DTensor.from_local(whole, mesh, [Replicate(), Replicate()], run_check=False),
        }
    )
    assert [spec.boxes for spec in held.rank_specs] == [
        (Box((3, 0), (1, 6)),),
        (Box((2, 3), (2, 3)),),
        (Box((0, 0), (8, 6)),),
    ]
    view = held.view("fsdp+tp", Box((3, 2), (1, 2)))
    assert view.tolist() == [[20.0, 21.0]]
    view.zero_()
    assert local.sum() == whole[3].sum() - 41


@pytest.mark.usefixtures("fake_world")
def test_a_partial_dtensor_is_refused() -> None:
    mesh = init_device_mesh("cpu", (8,))
    with pytest.raises(ValueError, match="Partial"):
        hold({"w": DTensor.from_local(torch.zeros(2), mesh, [Partial()], run_check=False)})
    with pytest.raises(ValueError, match="is it padded"):
        hold(
            {
                "w": DTensor.from_local(
                    torch.zeros(2), mesh, [OnDim(0)], run_check=False, shape=torch.Size((9,)), stride=(1,)
                )
            }
        )


def test_tied_tensors_are_one_memory() -> None:
    weight = torch.zeros(4, 2)
    rank_specs = hold({"head": weight, "other": torch.zeros(4, 2), "embed": weight, "part": weight[:2]}).rank_specs
    assert [spec.tie for spec in rank_specs] == ["head", "other", "head", "part"]


def test_a_list_of_shards_is_one_tensor() -> None:
    fused = torch.arange(12.0).reshape(6, 2)
    held = hold(
        {
            "q": [Shard(fused[:2], (8, 2), (0, 0)), Shard(fused[2:4], (8, 2), (6, 0))],
            "k": Shard(fused[4:], (2, 2), (0, 0)),
        }
    )
    assert held.rank_specs[0].boxes == (Box((0, 0), (2, 2)), Box((6, 0), (2, 2)))
    held.view("q", Box((7, 0), (1, 2))).fill_(-1)
    assert fused[3].tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("weights", "kind", "message"),
    [
        ([torch.zeros(1)], TypeError, "weights\\(\\) returns a mapping from name to tensor, got list"),
        ({"a": 3}, TypeError, "weight 'a' is a Tensor, a DTensor, a Shard or a list of Shards, got int"),
        ({"a": torch.zeros(2, device="meta")}, ValueError, "'a' is on the meta device"),
        ({"a": torch.zeros(2).to_sparse()}, ValueError, "'a' has no plain memory"),
        (
            {"a": [Shard(torch.zeros(1), (2,), (0,)), Shard(torch.zeros(1), (3,), (0,))]},
            ValueError,
            "the Shards of 'a' disagree about its global_shape",
        ),
        (
            {"a": [Shard(torch.zeros(1), (2,), (0,)), Shard(torch.zeros(1, dtype=torch.int8), (2,), (1,))]},
            ValueError,
            "the Shards of 'a' differ in dtype",
        ),
    ],
)
def test_what_is_no_weight_is_refused(weights: object, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        hold(weights)  # type: ignore[arg-type]  # what a user's weights() may return by mistake


def test_a_shard_lies_inside_its_tensor() -> None:
    with pytest.raises(ValueError, match="global_shape"):
        Shard(torch.zeros(3), (4,), (2,))
    with pytest.raises(ValueError, match="as many dimensions"):
        Shard(torch.zeros(3), (4, 1), (0, 0))


def inference_tensor() -> torch.Tensor:
    with torch.inference_mode():
        return torch.zeros(2)


def conjugate() -> torch.Tensor:
    return torch.zeros(2, dtype=torch.complex64).conj()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("build", "written", "word"),
    [
        (conjugate, False, "lazy view"),
        (lambda: conjugate().imag, True, "lazy view"),
        (lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]), False, "nested"),
        (inference_tensor, True, "inference_mode"),
    ],
)
def test_memory_that_holds_other_values_or_cannot_be_written_is_refused(
    build: Callable[[], torch.Tensor], written: bool, word: str
) -> None:
    with pytest.raises(ValueError, match=word):
        hold({"w": build()}, written=written)
