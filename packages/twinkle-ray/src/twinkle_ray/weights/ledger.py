"""The commit of one target rank: blocks are written in place, in a way that can be taken back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from twinkle_ray.weights.bucket import copy_all

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# exchanged piecewise, so that the third copy of a piece stays in the processor's cache
PIECE_ELEMENTS = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """One block and where it goes.

    Attributes:
        target: The user's memory.
        source: What arrived.
        owned: Nobody else reads `source`: the old values may move into it.
    """

    target: Tensor
    source: Tensor
    owned: bool


class Ledger:
    """The writes of a commit, done and undone.

    Where the memory of what arrived is this rank's own, old and new values change places, which needs no memory;
    elsewhere the old values are copied aside.

    Args:
        writes: In any order; targets do not overlap.
        reversible: Whether `undo` will be possible; without it a write is a plain copy.
    """

    def __init__(self, writes: Sequence[Write], *, reversible: bool) -> None:
        exchanged = [write for write in writes if reversible and write.owned and _alike(write)]
        kept = set(map(id, exchanged))
        self._copied = [write for write in writes if id(write) not in kept]
        self._pieces = [piece for write in exchanged for piece in _pieces(write)]
        self._reversible = reversible
        self._aside: list[Tensor] = []
        self._holds_old = False
        self._exchanged = 0

    def write(self) -> None:
        """Write everything; what an earlier write left to be undone is final now."""
        self.settle()
        if self._reversible:
            self._put_aside()
        copy_all([write.target for write in self._copied], [write.source for write in self._copied])
        while self._exchanged < len(self._pieces):
            _exchange(*self._pieces[self._exchanged])
            self._exchanged += 1

    def undo(self) -> None:
        """Take back what `write` did, also when it was interrupted; nothing when it did nothing."""
        while self._exchanged > 0:
            self._exchanged -= 1
            _exchange(*self._pieces[self._exchanged])
        if self._holds_old:
            copy_all([write.target for write in self._copied], self._aside)
            self._holds_old = False

    def settle(self) -> None:
        """Forget the old values."""
        self._exchanged = 0
        self._holds_old = False

    def _put_aside(self) -> None:
        """Copy old values into memory that is kept: touching fresh pages costs more than the copy."""
        targets = [write.target for write in self._copied]
        if not self._aside:
            self._aside = [torch.empty_like(target, memory_format=torch.contiguous_format) for target in targets]
        copy_all(self._aside, targets)
        self._holds_old = True


def _alike(write: Write) -> bool:
    target, source = write.target, write.source
    same = target.dtype == source.dtype and target.device == source.device
    return same and target.is_contiguous() and source.is_contiguous()


def _pieces(write: Write) -> Iterator[tuple[Tensor, Tensor]]:
    target, source = write.target.reshape(-1), write.source.reshape(-1)
    if target.itemsize == 1:
        target, source = target.view(torch.uint8), source.view(torch.uint8)
    for start in range(0, target.numel(), PIECE_ELEMENTS):
        piece = slice(start, start + PIECE_ELEMENTS)
        yield target[piece], source[piece]


def _exchange(a: Tensor, b: Tensor) -> None:
    with torch.no_grad():
        old = a.clone()
        a.copy_(b)
        b.copy_(old)
