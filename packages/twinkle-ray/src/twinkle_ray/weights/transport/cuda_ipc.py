"""Source and target on one GPU, in two processes: the target opens the source's buffer, nothing crosses the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.multiprocessing import reductions

from twinkle_ray.weights.transport.packing import copy_all, empty_bytes, slot_views

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_ray.weights.planning.buckets import Bucket

_reduce: Any = reductions.reduce_tensor
# where torch's rebuild_cuda_tensor takes the device: its number here may be another one there
_DEVICE_ARGUMENT = 6


@dataclass(frozen=True, slots=True, eq=False)
class DeviceMemory:
    """A buffer on a GPU: what torch rebuilds it with, and which GPU by its unique name."""

    number: int
    uuid: str
    rebuild: Callable[..., Tensor]
    arguments: tuple[Any, ...]


class CudaBlockStore:
    """Packs each bucket into GPU memory of its own, shared by CUDA IPC, kept and filled again in the next sync."""

    def __init__(self) -> None:
        self._left: dict[int, tuple[Sequence[Tensor], DeviceMemory]] = {}
        self._taken: dict[tuple[int, int], Sequence[Tensor]] = {}

    def leave(self, bucket: Bucket, blocks: Sequence[Tensor], *, copy: bool) -> object:
        """Copy the blocks into shared GPU memory; `copy` changes nothing, since they always are."""
        device = blocks[0].device
        if bucket.index not in self._left:
            buffer = empty_bytes(bucket.nbytes, device)
            rebuild, arguments = _reduce(buffer)
            uuid = str(torch.cuda.get_device_properties(device).uuid)
            memory = DeviceMemory(buffer.data_ptr(), uuid, rebuild, arguments)
            self._left[bucket.index] = (slot_views(bucket, buffer), memory)
        places, memory = self._left[bucket.index]
        copy_all(places, blocks)
        torch.cuda.synchronize(device)
        return memory

    def take(self, bucket: Bucket, handle: object) -> Sequence[Tensor]:
        """Open the source's memory.

        Raises:
            OSError: If this process does not see that GPU.
        """
        assert isinstance(handle, DeviceMemory)
        key = (bucket.index, handle.number)
        if key not in self._taken:
            uuids = [str(torch.cuda.get_device_properties(i).uuid) for i in range(torch.cuda.device_count())]
            if handle.uuid not in uuids:
                raise OSError(f"GPU {handle.uuid} is not visible to this process, which sees {uuids}")
            arguments = list(handle.arguments)
            arguments[_DEVICE_ARGUMENT] = uuids.index(handle.uuid)
            self._taken[key] = slot_views(bucket, handle.rebuild(*arguments))
        return self._taken[key]

    def clear(self) -> None:
        """Keep the memory for the next sync."""

    def close(self) -> None:
        """Give the memory back."""
        self._left.clear()
        self._taken.clear()
