"""Source and target in one process: the target reads the source's blocks by reference."""

from __future__ import annotations

from itertools import count
from threading import Lock
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from twinkle_ray.weights.planning.manifest import torch_dtype
from twinkle_ray.weights.transport.packing import copy_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_ray.weights.messages import MemoryFile
    from twinkle_ray.weights.planning.buckets import Bucket
    from twinkle_ray.weights.replacement.parameter_buffer import ParameterBuffer
    from twinkle_ray.weights.transport.protocol import Filled

_OFFERED: dict[int, Sequence[Tensor]] = {}
_TICKETS = count(1)
_LOCK = Lock()


class ProcessBlockStore:
    """Keeps blocks in a table of this process; a handle is a ticket number."""

    def __init__(self) -> None:
        self._tickets: list[int] = []

    def begin(self, occupied: frozenset[MemoryFile] | None) -> None:
        """No tensor lives in the memory of this block store."""

    def put(self, buckets: Sequence[Filled], *, copy: bool) -> Sequence[object]:
        """Offer the blocks themselves; with `copy`, copies of them in the dtype in transit."""
        return [self._put(bucket, blocks, copy=copy) for bucket, blocks in buckets]

    def _put(self, bucket: Bucket, blocks: Sequence[Tensor], *, copy: bool) -> object:
        if copy:
            kept = [
                torch.empty(slot.box.shape, dtype=torch_dtype(slot.wire), device=block.device)
                for slot, block in zip(bucket.slots, blocks, strict=True)
            ]
            copy_all(kept, blocks)
            blocks = kept
        with _LOCK:
            ticket = next(_TICKETS)
            _OFFERED[ticket] = blocks
        self._tickets.append(ticket)
        return ticket

    def get(self, bucket: Bucket, handle: object) -> Sequence[Tensor]:
        """The blocks of a ticket."""
        assert isinstance(handle, int)
        return _OFFERED[handle]

    def buffers(self) -> Sequence[ParameterBuffer]:
        """None."""
        return ()

    def clear(self) -> None:
        """Forget the tickets of this block store."""
        for ticket in self._tickets:
            _OFFERED.pop(ticket, None)
        self._tickets.clear()

    def close(self) -> None:
        """Forget everything."""
        self.clear()
