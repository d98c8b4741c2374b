"""Source and target on one GPU, in two processes: the target opens the source's buffer, without a copy to the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.multiprocessing import reductions

from twinkle_ray.weights.transport.packing import copy_all, empty_bytes, slot_views

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_ray.weights.messages import MemoryFile
    from twinkle_ray.weights.planning.buckets import Bucket
    from twinkle_ray.weights.transport.home import Home

_reduce: Any = reductions.reduce_tensor
# position of the device in the arguments of torch's rebuild_cuda_tensor: each process has its own numbers
_DEVICE_ARGUMENT = 6


@dataclass(frozen=True, slots=True, eq=False)
class DeviceMemory:
    """A buffer on a GPU: the call with which torch rebuilds it, and the unique name of the GPU."""

    number: int
    uuid: str
    rebuild: Callable[..., Tensor]
    arguments: tuple[Any, ...]


class CudaBlockStore:
    """Packs each bucket into its own GPU memory, shared by CUDA IPC, which the next sync fills again."""

    def __init__(self) -> None:
        self._offered: dict[int, tuple[Sequence[Tensor], DeviceMemory]] = {}
        self._opened: dict[tuple[int, int], Sequence[Tensor]] = {}

    def begin(self, occupied: frozenset[MemoryFile] | None) -> None:
        """No tensor lives in the memory of this block store."""

    def put(self, bucket: Bucket, blocks: Sequence[Tensor], *, copy: bool) -> object:
        """Copy the blocks into shared GPU memory, whatever `copy` is."""
        device = blocks[0].device
        if bucket.index not in self._offered:
            buffer = empty_bytes(bucket.nbytes, device)
            rebuild, arguments = _reduce(buffer)
            uuid = str(torch.cuda.get_device_properties(device).uuid)
            memory = DeviceMemory(buffer.data_ptr(), uuid, rebuild, arguments)
            self._offered[bucket.index] = (slot_views(bucket, buffer), memory)
        views, memory = self._offered[bucket.index]
        copy_all(views, blocks)
        torch.cuda.synchronize(device)
        return memory

    def get(self, bucket: Bucket, handle: object) -> Sequence[Tensor]:
        """Open the source's memory.

        Raises:
            OSError: If the GPU is not visible to this process.
        """
        assert isinstance(handle, DeviceMemory)
        key = (bucket.index, handle.number)
        if key not in self._opened:
            uuids = [str(torch.cuda.get_device_properties(i).uuid) for i in range(torch.cuda.device_count())]
            if handle.uuid not in uuids:
                raise OSError(f"GPU {handle.uuid} is not visible to this process, which sees {uuids}")
            arguments = list(handle.arguments)
            arguments[_DEVICE_ARGUMENT] = uuids.index(handle.uuid)
            self._opened[key] = slot_views(bucket, handle.rebuild(*arguments))
        return self._opened[key]

    def homes(self) -> Sequence[Home]:
        """None."""
        return ()

    def clear(self) -> None:
        """Keep the memory for the next sync."""

    def close(self) -> None:
        """Give the memory back."""
        self._offered.clear()
        self._opened.clear()
