"""What torch, or the program, gets wrong on this rank alone leaves the collective as good as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from twinkle_ray.collective import MeshCollective

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.processes


def build(rank: int, world: int = 2) -> MeshCollective:
    return MeshCollective(rank, world, world, rank, "cpu", timeout=20.0)


def any_strides(rank: int) -> None:
    with build(rank) as whole:
        gathered = torch.zeros(3, 4).t()
        whole.all_gather(gathered, torch.full((3, 2), float(rank)).t())
        assert gathered.tolist() == [[0.0] * 3] * 2 + [[1.0] * 3] * 2
        parts = [torch.zeros(3, 4).t()[::2] for _ in range(2)]
        whole.all_gather_to_list(parts, torch.full((1, 3), float(rank)).expand(2, 3))
        assert [part.tolist() for part in parts] == [[[0.0] * 3] * 2, [[1.0] * 3] * 2]
        column = torch.full((4, 2), float(rank))
        whole.all_reduce(column[:, 0])
        assert column.tolist() == [[1.0, float(rank)]] * 4
        whole.broadcast(column[:, 1], 1)
        assert column.tolist() == [[1.0, 1.0]] * 4
        leaf = torch.full((2,), float(rank), requires_grad=True)
        whole.all_reduce(leaf)
        assert leaf.tolist() == [1.0, 1.0] and leaf.requires_grad
        number = torch.tensor(float(rank))
        whole.broadcast(number, 1)
        assert number.item() == 1.0
        one = torch.full((4, 2), float(rank))[::4, ::2]  # of one element, which is contiguous with any stride
        whole.broadcast(one, 1)
        assert one.tolist() == [[1.0]]
        empty = torch.zeros(0, 3)
        whole.all_gather(empty, torch.zeros(0, 3))


def test_tensors_of_any_strides(run_ranks: Callable[..., list[Any]]) -> None:
    run_ranks(2, any_strides)


MOVED = ["float8_e4m3fn", "float8_e5m2", "uint16", "complex64", "bool", "bfloat16", "int64"]


def any_dtype(rank: int) -> None:
    with build(rank) as whole:
        for name in MOVED:
            dtype = getattr(torch, name)
            own = torch.full((3,), rank, dtype=torch.uint8).to(dtype)
            gathered = torch.zeros(6, dtype=torch.uint8).to(dtype)
            whole.all_gather(gathered, own)
            assert gathered.to(torch.complex64).tolist() == [0, 0, 0, 1, 1, 1], name
            parts = [torch.zeros(3, dtype=torch.uint8).to(dtype) for _ in range(2)]
            whole.all_gather_to_list(parts, own)
            assert [part.to(torch.complex64).tolist() for part in parts] == [[0] * 3, [1] * 3], name
            whole.broadcast(own, 1)
            assert own.to(torch.complex64).tolist() == [1, 1, 1], name


def test_what_only_moves_may_have_any_dtype(run_ranks: Callable[..., list[Any]]) -> None:
    run_ranks(2, any_dtype)


class Unpicklable:
    def __init__(self, when: str) -> None:
        self.when = when

    def __getstate__(self) -> dict[str, Any]:
        if self.when == "saving":
            raise RuntimeError("not to be saved")
        return {"when": self.when}

    def __setstate__(self, state: dict[str, Any]) -> None:
        raise RuntimeError("not to be loaded")


def mistakes(rank: int) -> None:
    with build(rank) as whole:
        float8 = torch.ones(2).to(torch.float8_e4m3fn)
        for _ in range(2):
            with pytest.raises(ValueError, match="SUM of float8_e4m3fn over Gloo: Invalid scalar type"):
                whole.all_reduce(float8)
            with pytest.raises(ValueError, match="all_reduce BAND of float32 over Gloo: Cannot use"):
                whole.all_reduce(torch.ones(2), dist.ReduceOp.BAND)
        with pytest.raises(ValueError, match="needs 4 elements"):
            whole.all_gather(torch.zeros(3), torch.zeros(2))
        if rank == 0:  # on one rank alone: the other has not entered, and may still do something else
            with pytest.raises(ValueError, match="source_rank=2"):
                whole.broadcast(torch.ones(2), 2)
            with pytest.raises(ValueError, match="BAND of float32"):
                whole.all_reduce(torch.ones(2), dist.ReduceOp.BAND)
            with pytest.raises(RuntimeError, match="not to be saved"):
                whole.all_gather_objects(Unpicklable("saving"))
        with pytest.raises(RuntimeError, match="not to be loaded"):
            whole.all_gather_objects(Unpicklable("loading"))
        objects: list[object] = [Unpicklable("loading")]
        if rank == 0:
            whole.broadcast_objects(objects, 0)
        else:
            with pytest.raises(RuntimeError, match="not to be loaded"):
                whole.broadcast_objects(objects, 0)
        value = torch.tensor([1, 3]) << rank
        whole.all_reduce(value, dist.ReduceOp.BAND)
        assert value.tolist() == [0, 2]
        whole.barrier()


def test_a_mistake_on_this_rank_leaves_the_collective_as_good_as_it_was(run_ranks: Callable[..., list[Any]]) -> None:
    run_ranks(2, mistakes)
