from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from twinkle_ray.collective import process_groups
from twinkle_ray.collective.mesh import MeshCollective

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """A process of one GPU, by name; the arguments of torch's groups. Gloo stands for NCCL."""
    asked: list[dict[str, Any]] = []
    init, new = dist.init_process_group, dist.new_group

    def init_group(**options: Any) -> None:
        asked.append(dict(options))
        init(**{**options, "backend": options["backend"].replace("nccl", "gloo")})

    def new_group(ranks: list[int], **options: Any) -> Any:
        asked.append({"ranks": ranks, **options})
        return new(ranks, **options)

    new_group.__signature__ = signature(new)  # type: ignore[attr-defined]  # a function may have one
    monkeypatch.setattr(dist, "init_process_group", init_group)
    monkeypatch.setattr(dist, "new_group", new_group)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "0")
    return_store = dist.HashStore()  # type: ignore[attr-defined]  # torch exports it without a stub
    monkeypatch.setattr(process_groups, "rendezvous", lambda *given, **options: iter([(return_store, 0, 1)]))
    yield asked
    if dist.is_initialized():
        dist.destroy_process_group()


def test_a_collective_on_gpus_takes_tensors_of_the_host_too(a_gpu: list[dict[str, Any]]) -> None:
    with MeshCollective(0, 1, 1, 0, "cuda", timeout=20.0, debug=True) as whole:
        assert a_gpu[0]["backend"] == "cpu:gloo,cuda:nccl"
        assert a_gpu[0].get("device_id") is None  # torch would split NCCL's communicator for every further group
        value = torch.arange(3.0)
        whole.all_reduce(value)
        whole.broadcast(value)
        gathered = torch.empty(3)
        whole.all_gather(gathered, value)
        whole.barrier()
        assert gathered.tolist() == [0.0, 1.0, 2.0]
        assert whole.all_gather_objects({"a": 1}) == [{"a": 1}]
        with pytest.raises(ValueError, match="over Gloo"):
            whole.all_reduce(torch.ones(2, dtype=torch.bool), dist.ReduceOp.AVG)
        assert whole.default_device == torch.device("cuda", 0)
