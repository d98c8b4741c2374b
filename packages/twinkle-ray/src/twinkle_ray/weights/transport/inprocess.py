"""Source and target in one process: blocks are handed over by reference."""

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

    from twinkle_ray.weights.planning.buckets import Bucket

_LEFT: dict[int, Sequence[Tensor]] = {}
_TICKETS = count(1)
_LOCK = Lock()


class ProcessBlockStore:
    """Keeps blocks in a table of this process; a handle is a ticket number."""

    def __init__(self) -> None:
        self._tickets: list[int] = []

    def leave(self, bucket: Bucket, blocks: Sequence[Tensor], *, copy: bool) -> object:
        """Keep the blocks themselves, or copies in transit dtype where the source goes on meanwhile."""
        if copy:
            kept = [
                torch.empty(slot.box.shape, dtype=torch_dtype(slot.wire), device=block.device)
                for slot, block in zip(bucket.slots, blocks, strict=True)
            ]
            copy_all(kept, blocks)
            blocks = kept
        with _LOCK:
            ticket = next(_TICKETS)
            _LEFT[ticket] = blocks
        self._tickets.append(ticket)
        return ticket

    def take(self, bucket: Bucket, handle: object) -> Sequence[Tensor]:
        """The blocks behind a ticket."""
        assert isinstance(handle, int)
        return _LEFT[handle]

    def clear(self) -> None:
        """Forget the tickets of this depot."""
        for ticket in self._tickets:
            _LEFT.pop(ticket, None)
        self._tickets.clear()

    def close(self) -> None:
        """Forget everything."""
        self.clear()
