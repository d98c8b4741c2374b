"""What `torch_internals` uses is in this torch, and does what is said of it."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from twinkle_ray import torch_internals


def test_a_group_of_gloo_has_the_device_and_the_timeout() -> None:
    device = dist.distributed_c10d.ProcessGroupGloo.create_device(hostname="127.0.0.1")
    options = torch_internals.gloo_options(device, 1, timedelta(seconds=7))
    assert (options._devices, options._threads, options._timeout) == ([device], 1, timedelta(seconds=7))


def test_a_strided_shard_is_told_from_a_shard() -> None:
    from torch.distributed.tensor.placement_types import Replicate, Shard, _StridedShard

    found = [torch_internals.strided_split(one) for one in (_StridedShard(0, split_factor=2), Shard(0), Replicate())]
    assert found == [(0, 2), None, None]


def test_tensors_are_copied_and_converted_in_one_call() -> None:
    targets = [torch.zeros(2), torch.zeros(1, dtype=torch.bfloat16)]
    torch_internals.copy_each(targets, [torch.tensor([1.0, 2.0]), torch.tensor([3.0])])
    assert [target.tolist() for target in targets] == [[1.0, 2.0], [3.0]]


@pytest.mark.skipif(not dist.is_nccl_available(), reason="this torch is built without NCCL")
def test_a_group_of_nccl_has_the_timeout() -> None:
    assert torch_internals.nccl_options(timedelta(seconds=7))._timeout == timedelta(seconds=7)
