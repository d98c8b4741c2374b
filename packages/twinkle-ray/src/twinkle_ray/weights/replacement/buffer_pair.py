"""Memory of a target rank for the next version of its weights, in turns with the memory in which they live."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinkle_ray.weights.replacement.parameter_buffer import ParameterBuffer
from twinkle_ray.weights.transport.packing import empty_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch


class BufferPair:
    """Buffers in this process's own memory; what was used in the sync before last is kept for this one."""

    def __init__(self) -> None:
        self._buffers: list[ParameterBuffer] = []
        self._taken: list[ParameterBuffer] = []
        self._owners: list[ParameterBuffer] = []

    def begin(self, owners: Iterable[ParameterBuffer]) -> None:
        """Begin a sync.

        Args:
            owners: The buffers in which tensors live now.
        """
        now = list(owners)
        self._buffers = [
            buffer for buffer in self._buffers if buffer in self._taken or buffer in self._owners or buffer in now
        ]
        self._taken, self._owners = [], now

    def take(self, nbytes: int, device: torch.device) -> ParameterBuffer:
        """A buffer of this size in which no tensor lives."""
        for buffer in self._buffers:
            fits = (buffer.memory.numel(), buffer.memory.device) == (nbytes, device)
            if fits and buffer not in self._owners and buffer not in self._taken:
                break
        else:
            buffer = ParameterBuffer(empty_bytes(nbytes, device))
            self._buffers.append(buffer)
        self._taken.append(buffer)
        return buffer

    def clear(self) -> None:
        """Give back what no tensor lives in."""
        self._buffers.clear()
        self._taken.clear()
        self._owners.clear()
