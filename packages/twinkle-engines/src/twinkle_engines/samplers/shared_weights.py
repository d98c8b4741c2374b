"""SharedWeights: tensors in memory that other processes of the host can map."""

from __future__ import annotations

import logging
import math
import os
import weakref
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

_ALIGNMENT = 256
_log = logging.getLogger("twinkle.engines")


class SharedWeights:
    """Tensors in one anonymous file of the kernel, which ends with the last process that has it open.

    Args:
        like: Tensors by name, whose shapes are taken, such as those of a model on the meta device. One that has two
            names, as a tied head has, has its memory once.
        dtype: Dtype of those of floating point; None for their own.
    """

    def __init__(self, like: Mapping[str, Tensor], dtype: torch.dtype | None = None) -> None:
        starts: dict[int, int] = {}
        size = 0
        self._rows: list[tuple[str, str, list[int], int]] = []
        for name, tensor in like.items():
            kind = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
            if id(tensor) not in starts:
                starts[id(tensor)] = size
                size += -(-tensor.numel() * kind.itemsize // _ALIGNMENT) * _ALIGNMENT
            self._rows.append((name, str(kind).removeprefix("torch."), list(tensor.shape), starts[id(tensor)]))
        file = os.memfd_create("twinkle-weights")
        weakref.finalize(self, os.close, file)
        os.ftruncate(file, size)
        self._place: dict[str, Any] = {"path": f"/proc/{os.getpid()}/fd/{file}", "size": size}
        self.tensors: dict[str, Tensor] = map_shared(**self.description)

    @property
    def description(self) -> dict[str, Any]:
        """The argument of `map_shared`, of plain values; good as long as these weights exist."""
        return {**self._place, "tensors": self._rows}


def map_shared(path: str, size: int, tensors: list[tuple[str, str, list[int], int]]) -> dict[str, Tensor]:
    """The tensors of `SharedWeights`, in this process."""
    if not size:
        return {}
    memory = torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
    found = {}
    for name, kind, shape, start in tensors:
        dtype: torch.dtype = getattr(torch, kind)
        stop = start + math.prod(shape) * dtype.itemsize
        found[name] = memory[start:stop].view(dtype).view(shape)
    return found


def pin_shared(tensors: Mapping[str, Tensor], owner: object) -> bool:
    """Pin the memory of tensors of `map_shared`, at least one, for as long as their owner lives: GPUs read it directly.

    Returns:
        Whether it is pinned; where the system has a limit on pinned memory, copies are slower, and the log says so.
    """
    storage = next(iter(tensors.values())).untyped_storage()
    cuda: Any = torch.cuda  # torch has no types for its runtime
    runtime = cuda.cudart()
    code = int(runtime.cudaHostRegister(storage.data_ptr(), storage.nbytes(), 0))
    if code:
        _log.info("%d bytes of weights were not pinned (CUDA error %d): copies are slower", storage.nbytes(), code)
        return False
    weakref.finalize(owner, runtime.cudaHostUnregister, storage.data_ptr())
    return True
