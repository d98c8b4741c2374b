"""Memory in which tensors of a target rank live, once a sync has replaced theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twinkle_ray.weights.messages import MemoryFile


@dataclass(frozen=True, slots=True, eq=False)
class ParameterBuffer:
    """A piece of memory that tensors live in, or may live in.

    Attributes:
        memory: Its bytes.
        file: The memory file that it maps; None for memory of this process alone.
    """

    memory: Tensor
    file: MemoryFile | None = None

    def offset(self, address: int, nbytes: int) -> int | None:
        """The offset in bytes of so many bytes at an address; None if they do not lie in this memory."""
        offset = address - self.memory.data_ptr()
        return offset if offset >= 0 and offset + nbytes <= self.memory.numel() else None

    def tensor_like(self, other: Tensor, offset: int) -> Tensor:
        """A tensor as large as a contiguous one, with a storage of its own: torch saves and copies storages whole."""
        part: Any = self.memory.untyped_storage()[offset : offset + other.nbytes]  # typed as one byte
        return torch.empty(0, dtype=other.dtype, device=other.device).set_(part).as_strided(other.shape, other.stride())


def owners_among(buffers: Iterable[ParameterBuffer], tensors: Iterable[Tensor]) -> list[ParameterBuffer]:
    """Those buffers in which at least one tensor lives."""
    addresses = [tensor.data_ptr() for tensor in tensors]
    return [buffer for buffer in buffers if any(buffer.offset(address, 1) is not None for address in addresses)]
