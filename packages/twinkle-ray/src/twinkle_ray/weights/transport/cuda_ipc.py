"""Source and target on one GPU, in two processes: the target opens the source's buffer, without a copy to the host.

Some allocators of torch cannot share their memory (expandable segments, pluggable ones). Then blocks go over the host.
"""

from __future__ import annotations

import logging
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
    from twinkle_ray.weights.replacement.parameter_buffer import ParameterBuffer
    from twinkle_ray.weights.transport.protocol import BlockStore, Filled

_log = logging.getLogger("twinkle.ray")
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
    """Packs each bucket into its own GPU memory, shared by CUDA IPC until the sync is over.

    Args:
        over_host: The block store for a bucket whose memory cannot be shared.
    """

    def __init__(self, over_host: BlockStore) -> None:
        self._over_host, self._refused = over_host, False
        self._offered: dict[int, tuple[Sequence[Tensor], DeviceMemory]] = {}
        self._opened: dict[tuple[int, int], Sequence[Tensor]] = {}

    def begin(self, occupied: frozenset[MemoryFile] | None) -> None:
        """No tensor lives in the GPU memory of this block store."""
        self._over_host.begin(occupied)

    def put(self, buckets: Sequence[Filled], *, copy: bool) -> Sequence[object]:
        """Copy the blocks into shared GPU memory, whatever `copy` is."""
        return [self._put(bucket, blocks, copy=copy) for bucket, blocks in buckets]

    def _put(self, bucket: Bucket, blocks: Sequence[Tensor], *, copy: bool) -> object:
        device = blocks[0].device
        if bucket.index not in self._offered:
            offered = None if self._refused else self._shared(bucket, device)
            if offered is None:
                return self._over_host.put([(bucket, blocks)], copy=copy)[0]
            self._offered[bucket.index] = offered
        views, memory = self._offered[bucket.index]
        copy_all(views, blocks)
        torch.cuda.synchronize(device)
        return memory

    def _shared(self, bucket: Bucket, device: torch.device) -> tuple[Sequence[Tensor], DeviceMemory] | None:
        """GPU memory for a bucket, and what a target opens; None where the allocator's memory cannot be shared."""
        buffer = empty_bytes(bucket.nbytes, device)
        try:
            rebuild, arguments = _reduce(buffer)
        except RuntimeError as error:
            self._refused = True
            _log.warning("CUDA IPC is refused, so that weights go over the host: %s", str(error).partition("\n")[0])
            return None
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        return slot_views(bucket, buffer), DeviceMemory(buffer.data_ptr(), uuid, rebuild, arguments)

    def get(self, bucket: Bucket, handle: object) -> Sequence[Tensor]:
        """Open the source's memory.

        Raises:
            OSError: If the GPU is not visible to this process.
            RuntimeError: If CUDA refuses to open it.
        """
        if not isinstance(handle, DeviceMemory):
            return self._over_host.get(bucket, handle)
        key = (bucket.index, handle.number)
        if key not in self._opened:
            uuids = [str(torch.cuda.get_device_properties(i).uuid) for i in range(torch.cuda.device_count())]
            if handle.uuid not in uuids:
                raise OSError(f"GPU {handle.uuid} is not visible to this process, which sees {uuids}")
            arguments = list(handle.arguments)
            arguments[_DEVICE_ARGUMENT] = uuids.index(handle.uuid)
            try:
                self._opened[key] = slot_views(bucket, handle.rebuild(*arguments))
            except RuntimeError as error:
                raise RuntimeError(
                    f"CUDA IPC: GPU {handle.uuid} does not open memory of another process here ({error}); "
                    'WeightSync(transport="shared") goes over the host'
                ) from error
        return self._opened[key]

    def buffers(self) -> Sequence[ParameterBuffer]:
        """Memory of the host alone."""
        return self._over_host.buffers()

    def clear(self) -> None:
        """Give the GPU's memory back: it ends when both ends have; that of the host is kept."""
        self._offered.clear()
        self._opened.clear()
        self._over_host.clear()

    def close(self) -> None:
        """Give the memory back."""
        self.clear()
        self._over_host.close()
