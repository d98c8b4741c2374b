"""An actor of pp=2 x dp=2 x tp=2 over FSDP2 and tensor parallelism, into samplers that each hold the whole model."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import TCPStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from twinkle_ray.weights import WeightSync

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.processes

SHAPES = {"0.weight": (17, 10), "0.bias": (17,), "2.weight": (10, 17), "2.bias": (10,)}


class Actor:
    def __init__(self, rank: int, port: int) -> None:
        store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=8, timeout=timedelta(seconds=60))
        mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
        self.stage = mesh.get_local_rank("pp")
        torch.manual_seed(self.stage)
        self.model = nn.Sequential(nn.Linear(10, 17), nn.ReLU(), nn.Linear(17, 10))
        self.whole = {f"{self.stage}.{name}": value.clone() for name, value in self.model.state_dict().items()}
        parallelize_module(self.model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(self.model, mesh=mesh["dp"])

    def weights(self) -> dict[str, Tensor]:
        return {f"{self.stage}.{name}": value for name, value in self.model.state_dict().items()}


class Sampler:
    def __init__(self) -> None:
        self.tensors = {f"{stage}.{name}": torch.zeros(shape) for stage in (0, 1) for name, shape in SHAPES.items()}

    def weights(self) -> dict[str, Tensor]:
        return self.tensors


def whole(actor: Actor) -> dict[str, Tensor]:
    assert all(isinstance(value, DTensor) for value in actor.weights().values())
    return actor.whole


def tensors(sampler: Sampler) -> dict[str, Tensor]:
    return sampler.tensors


def group_works(actor: Actor) -> float:
    total = torch.ones(1)
    dist.all_reduce(total)
    return float(total)


def empty(sampler: Sampler) -> None:
    for tensor in sampler.tensors.values():
        tensor.zero_()


@pytest.fixture(scope="module")
def sides(process_workers: Callable[..., Any]) -> tuple[Any, Any]:
    """Trainers and samplers."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    actor = process_workers("actor", Actor, [(rank, store.port) for rank in range(8)])
    return actor, process_workers("sampler", Sampler, [()] * 4)


@pytest.mark.parametrize("transport", ["gloo", "auto"])
def test_pipeline_data_and_tensor_parallel_weights_reach_whole_models(sides: tuple[Any, Any], transport: Any) -> None:
    actor, sampler = sides
    sampler.run(empty)
    with WeightSync(actor, sampler, transport=transport, timeout=60.0) as sync:
        assert (sync(), sync()) == (1, 2)
        expected = {name: value for part in actor.run(whole) for name, value in part.items()}
        for found in sampler.run(tensors):
            assert found.keys() == expected.keys()
            assert all(found[name].equal(value) for name, value in expected.items())
        assert sync.plan is not None
        sent, model = sync.plan.sent(8), 4 * sum(value.numel() for value in expected.values())
        assert sum(sent) == model
        assert max(sent) <= model / 8 * 1.4
        assert actor.run(group_works) == [8.0] * 8
