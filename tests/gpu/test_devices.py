"""Each path on the devices that are there: placement, reductions, FSDP2, vLLM, weights; on CPUs where there is no GPU.

pytest tests/gpu -m "gpu or not gpu"      # on a machine with GPUs: NCCL, CUDA and vLLM run for the first time here
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import fully_shard

import twinkle
from twinkle import DeviceGroup, MeshCollective, WeightSync, remote_class, remote_function
from twinkle.engines import SamplingParams, TransformersModel, VLLMSampler, mismatch

GPUS = torch.cuda.device_count()
without_gpu = pytest.mark.skipif(not GPUS, reason="there is no GPU")
without_vllm = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
ON_DEVICES = [
    pytest.param("cpu", 2, id="cpu"),
    pytest.param("cuda", GPUS, id="cuda", marks=[pytest.mark.gpu, without_gpu]),
]


@remote_class()
class Probe:
    """One rank of a group on the devices."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    @remote_function(dispatch="all")
    def look(self) -> tuple[str, float]:
        """Return the name of this process's device, and the sum of 1,024 ones there."""
        name = str(os.getpid())
        if self._kind == "cuda":
            index = int(os.environ["LOCAL_RANK"])
            torch.cuda.set_device(index)
            name = str(torch.cuda.get_device_properties(index).uuid)
        return name, float(torch.ones(1024, device=self._kind).sum())

    @remote_function(dispatch="all")
    def reduce(self) -> tuple[float, float]:
        """Return the sums of ones over all ranks: of the device's tensor, and of the host's."""
        with MeshCollective.from_env(device_type=self._kind, timeout=60.0) as whole:
            on_device, on_host = torch.ones(4, device=self._kind), torch.ones(4)
            whole.all_reduce(on_device)
            whole.all_reduce(on_host)
            return float(on_device[0]), float(on_host[0])

    @remote_function(dispatch="all")
    def train(self) -> tuple[float, float]:
        """Return the losses before and after steps of a small network that FSDP2 divides over all ranks."""
        with MeshCollective.from_env(device_type=self._kind, timeout=60.0) as whole:
            torch.manual_seed(0)
            net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).to(self._kind)
            fully_shard(net, mesh=whole.dp_mesh["dp_shard"])
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            given, losses = torch.randn(16, 64).to(self._kind), []
            for _ in range(5):
                loss = net(given).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
            return losses[0], losses[-1]


@pytest.mark.ray
@pytest.mark.parametrize(("kind", "count"), ON_DEVICES)
def test_a_group_has_devices_of_its_own_reduces_and_trains(kind: str, count: int) -> None:
    groups = [DeviceGroup("devices", count, "GPU" if kind == "cuda" else "CPU")]
    make: Any = Probe
    with twinkle.session("ray", groups=groups, lazy_collect=False):
        probe = make(kind, remote_group="devices")
        seen = probe.look()
        assert len({name for name, _ in seen}) == count and [total for _, total in seen] == [1024.0] * count
        assert probe.reduce() == [(count, count)] * count
        losses = probe.train()
        assert losses == [losses[0]] * count and losses[0][1] < losses[0][0]


@pytest.mark.gpu
@without_gpu
@without_vllm
def test_an_engine_of_vllm_takes_a_trainers_weights() -> None:
    transformers: Any = pytest.importorskip("transformers", reason="the model is Transformers' own")
    config = transformers.Qwen2Config(
        vocab_size=256, hidden_size=128, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=256,
    )  # fmt: skip
    config.dtype = torch.bfloat16
    make_sampler: Any = VLLMSampler
    make_model: Any = TransformersModel
    params = SamplingParams(max_new_tokens=8, seed=1)
    with twinkle.session("local"):
        sampler = make_sampler(config, max_model_len=256, enforce_eager=True, gpu_memory_utilization=0.3)
        model = make_model(config, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
        WeightSync(model, sampler)()
        rollouts = sampler.sample([[1, 2, 3], [4, 5]], params)
        assert mismatch(model.annotate(rollouts, "proximal"))["worst"] < 1.1
