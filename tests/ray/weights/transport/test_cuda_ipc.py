"""CUDA IPC where it is refused: weights go over the host. Blocks are of the host here, and the GPU is a name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from twinkle_ray.weights.planning.box_plan import SizedBox
from twinkle_ray.weights.planning.buckets import Bucket
from twinkle_ray.weights.shards.box import Box
from twinkle_ray.weights.transport import block_store_for, cuda_ipc
from twinkle_ray.weights.transport.cuda_ipc import CudaBlockStore, DeviceMemory
from twinkle_ray.weights.transport.shared import Segment, SharedBlockStore

if TYPE_CHECKING:
    from collections.abc import Sequence

SIZE = 4096
BUCKETS = [
    Bucket(index, 0, (0,), "host", (index,), ("uint8",), (SizedBox(Box.whole((SIZE,)), SIZE),), SIZE)
    for index in range(3)
]


def _refused(buffer: torch.Tensor) -> Any:
    raise RuntimeError("cudaIpcGetMemHandle: invalid argument\nof an expandable segment")


def _block(value: int) -> list[torch.Tensor]:
    return [torch.full((SIZE,), value, dtype=torch.uint8)]


def test_memory_that_cannot_be_shared_goes_over_the_host(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cuda_ipc, "_reduce", _refused)
    source, target = (block_store_for("cuda_ipc", "sync", BUCKETS, private=False) for _ in range(2))
    for value in (1, 2):
        for store in (source, target):
            store.begin(frozenset())
        handles = source.put([(bucket, _block(value)) for bucket in BUCKETS], copy=False)
        assert all(isinstance(handle, Segment) for handle in handles)
        for bucket, handle in zip(BUCKETS, handles, strict=True):
            (found,) = target.get(bucket, handle)
            assert torch.equal(found, _block(value)[0])
        for store in (source, target):
            store.clear()
    assert caplog.text.count("CUDA IPC is refused") == 1
    for store in (source, target):
        store.close()


class _Gpu:
    uuid = "GPU-0"


def test_memory_that_can_be_shared_is_opened_or_the_error_names_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    shared: dict[int, torch.Tensor] = {}

    def reduce(buffer: torch.Tensor) -> tuple[Any, Sequence[object]]:
        shared[buffer.data_ptr()] = buffer
        return lambda *arguments: shared[arguments[0]], (buffer.data_ptr(), *[None] * 8)

    monkeypatch.setattr(cuda_ipc, "_reduce", reduce)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: _Gpu)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    source, target = (CudaBlockStore(SharedBlockStore(BUCKETS)) for _ in range(2))
    (handle,) = source.put([(BUCKETS[0], _block(7))], copy=False)
    assert isinstance(handle, DeviceMemory)
    assert torch.equal(target.get(BUCKETS[0], handle)[0], _block(7)[0])

    def closed(*arguments: object) -> torch.Tensor:
        raise RuntimeError("invalid device context")

    other = DeviceMemory(handle.number + 1, handle.uuid, closed, handle.arguments)
    with pytest.raises(RuntimeError, match='transport="shared"'):
        target.get(BUCKETS[1], other)
