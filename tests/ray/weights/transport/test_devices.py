"""Weights on GPUs, over every transport that there is hardware for; and on CPUs, so that the tests run anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from twinkle_ray.weights import Shard, WeightSync

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

pytestmark = pytest.mark.processes

GPUS = torch.cuda.device_count()
SHAPES = {
    "large": ((640, 1024), "float32"),  # a bucket of its own, which leaves from where it is
    "half": ((64, 48), "bfloat16"),
    "eight": ((64, 16), "float8_e4m3fn"),
    "ids": ((32,), "int64"),
    "empty": ((0, 4), "float32"),
}


class Model:
    """A share of the rows of every tensor, on a device."""

    def __init__(self, rank: int, ranks: int, device: str, salt: int) -> None:
        self.rank, self.ranks, self.device = rank, ranks, device
        self.parts = {name: self.part(name, salt) for name in SHAPES}
        self.versions: list[int] = []

    def part(self, name: str, salt: int) -> Shard:
        shape, dtype = SHAPES[name]
        drawn = torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(salt))
        rows = shape[0] // self.ranks
        block = drawn.narrow(0, rows * self.rank, rows).to(getattr(torch, dtype)).to(self.device)
        return Shard(block, shape, (rows * self.rank, *[0] * (len(shape) - 1)))

    def weights(self) -> Mapping[str, Tensor | Shard]:
        return self.parts

    def on_weights(self, version: int) -> None:
        self.versions.append(version)


def refill(model: Model, salt: int) -> None:
    for name, part in model.parts.items():
        part.tensor.view(torch.uint8).copy_(model.part(name, salt).tensor.view(torch.uint8))


def wrong(model: Model, salt: int) -> list[str]:
    """Names whose values are not those of `salt`."""
    names = []
    for name, part in model.parts.items():
        have, want = part.tensor.cpu(), model.part(name, salt).tensor.cpu()
        if not torch.equal(have.view(torch.uint8), want.view(torch.uint8)):
            names.append(name)
    return names


def routes(model: Model) -> set[str]:
    """How this process's buckets travel."""
    from twinkle_ray.weights.worker import endpoint

    rank_states = [
        rank_state
        for process_state in endpoint._PROCESSES.values()
        for rank_state in process_state.rank_states.values()
    ]
    return {
        route
        for rank_state in rank_states
        if rank_state.rank_plan is not None
        for route in rank_state.rank_plan.routes.values()
    }


def kinds(model: Model) -> set[str]:
    """What the links of this process are."""
    from twinkle_ray.weights.worker import endpoint

    return {
        process_state.session.kind
        for process_state in endpoint._PROCESSES.values()
        if process_state.session is not None
    }


# transport, devices of the source's ranks and of the target's, the routes that are to be taken, the kind of links
Case = tuple[str, list[str], list[str], set[str], str]
CASES: list[Case] = [
    ("auto", ["cpu", "cpu"], ["cpu"], {"shared"}, ""),
    ("gloo", ["cpu", "cpu"], ["cpu", "cpu"], {"link"}, "gloo"),
]
ON_ONE_GPU: list[Case] = [
    ("auto", ["cuda:0"], ["cuda:0"], {"cuda_ipc"}, ""),
    ("cuda_ipc", ["cuda:0", "cuda:0"], ["cuda:0"], {"cuda_ipc"}, ""),
    ("shared", ["cuda:0"], ["cuda:0"], {"shared"}, ""),
    ("gloo", ["cuda:0"], ["cuda:0"], {"link"}, "gloo"),
    ("auto", ["cuda:0"], ["cpu"], {"shared"}, ""),
]
OTHERS = [f"cuda:{gpu}" for gpu in range(1, GPUS)]
ON_SEVERAL_GPUS: list[Case] = [
    ("nccl", ["cuda:0"], OTHERS, {"link"}, "nccl"),
    ("nccl", OTHERS, ["cuda:0"], {"link"}, "nccl"),
    ("auto", ["cuda:0"], OTHERS, {"link"}, "nccl"),
    ("auto", ["cuda:0", "cuda:1"], ["cuda:0", "cuda:1"], {"cuda_ipc", "shared"}, ""),
]
gpu = pytest.mark.gpu
ALL = [
    *CASES,
    *(pytest.param(*case, marks=gpu) for case in (ON_ONE_GPU if GPUS else [])),
    *(pytest.param(*case, marks=gpu) for case in (ON_SEVERAL_GPUS if GPUS > 1 else [])),
]


@pytest.mark.parametrize("detached", [False, True])
@pytest.mark.parametrize(("transport", "source", "target", "taken", "kind"), ALL)
def test_weights_arrive_on_their_device(
    process_workers: Callable[..., Any],
    transport: Any,
    source: Sequence[str],
    target: Sequence[str],
    taken: set[str],
    kind: str,
    detached: bool,
) -> None:
    source, target = _even(source), _even(target)
    actor, sampler = (
        process_workers(name, Model, [(rank, len(devices), device, salt) for rank, device in enumerate(devices)])
        for name, devices, salt in (("actor", source, 0), ("sampler", target, 99))
    )
    with WeightSync(actor, sampler, transport=transport, timeout=60.0, checksum=True) as sync:
        for version in (1, 2, 3):
            actor.run(refill, version)
            if detached:
                under_way = sync.start()
                actor.run(refill, 77)
                assert under_way.result() == version
            else:
                assert sync() == version
            assert sampler.run(wrong, version) == [[]] * len(target)
        assert set().union(*sampler.run(routes)) <= taken
        assert set().union(*sampler.run(kinds)) <= ({kind} if kind else {"gloo", "nccl"})


def _even(devices: Sequence[str]) -> list[str]:
    """At most as many as divide the rows."""
    return list(devices[: 1 << (len(devices).bit_length() - 1)])


def test_torch_has_what_nccl_links_call() -> None:
    """A group of one backend takes no device, unlike torch's group over several of them; also told without a GPU."""
    from torch._C import _distributed_c10d as c10d

    backend: Any = c10d.Backend
    for name in ("_start_coalescing", "_end_coalescing", "abort"):
        assert f"{name}(self: torch._C._distributed_c10d.Backend) ->" in getattr(backend, name).__doc__
    for name in ("send", "recv", "eager_connect_single_device"):
        assert callable(getattr(backend, name))
    assert "synchronize(self: torch._C._distributed_c10d.Work) ->" in (c10d.Work.synchronize.__doc__ or "")
