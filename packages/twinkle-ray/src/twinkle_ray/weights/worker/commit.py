"""The commit of one target rank: it writes the blocks in place, and can restore the old values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from twinkle_ray.weights.transport.packing import copy_all

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# size of an exchange: the temporary copy of a piece stays in the processor's cache
PIECE_ELEMENTS = 1 << 17
DEVICE_PIECE_ELEMENTS = 1 << 24
MAX_INTEGER_BYTES = 8
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """One block, and the memory that it is written to.

    Attributes:
        target: The user's memory.
        source: The arrived block.
        owned: No other rank reads `source`, so the old values may move into it.
        entry: Index of the plan's entry that the block belongs to.
    """

    target: Tensor
    source: Tensor
    owned: bool
    entry: int = 0


class Commit:
    """The writes of a commit, which can be applied and rolled back.

    Where this rank owns the memory of an arrived block, old and new values are exchanged, which needs no more memory;
    elsewhere the old values are copied aside. A block that already has the new values is not written.

    Args:
        writes: In any order; targets do not overlap.
        reversible: Keep the old values for `rollback`; without it a write is a plain copy.
    """

    def __init__(self, writes: Sequence[Write], *, reversible: bool) -> None:
        exchanged = [write for write in writes if reversible and write.owned and _alike(write)]
        kept = set(map(id, exchanged))
        self._copies = [write for write in writes if id(write) not in kept]
        self._copy_pieces = [_slabs(write) for write in self._copies]
        self._exchanges = exchanged
        self._exchange_pieces = [_pieces(write) for write in exchanged]
        self._reversible = reversible
        self._saved: list[Tensor] = []
        self._copied: list[int] = []
        self._exchanged: list[tuple[Tensor, Tensor]] = []
        self._temporary: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    def apply(self) -> int:
        """Write everything; an earlier write becomes final.

        Returns:
            The entries whose values have changed, as a set of bits.
        """
        self.finalize()
        changed = 0
        differing = [i for i, differs in enumerate(_differing(self._copy_pieces)) if differs]
        if self._reversible:
            self._save(differing)
        copies = [self._copies[i] for i in differing]
        copy_all([write.target for write in copies], [write.source for write in copies])
        for write in copies:
            changed |= 1 << write.entry
        together = zip(self._exchanges, self._exchange_pieces, _differing(self._exchange_pieces), strict=True)
        for write, pieces, differs in together:
            if differs:
                changed |= 1 << write.entry
                temporary = self._temporary_for(pieces[0][0])
                for piece in pieces:
                    _exchange(*piece, temporary)
                    self._exchanged.append(piece)
        return changed

    def _temporary_for(self, piece: Tensor) -> Tensor:
        """Memory for an exchange of this piece or a smaller one; kept, because fresh memory costs more."""
        key = (piece.dtype, piece.device)
        if key not in self._temporary or self._temporary[key].numel() < piece.numel():
            self._temporary[key] = torch.empty_like(piece)
        return self._temporary[key]

    def differing(self) -> int:
        """The entries that `apply` would change, as a set of bits; writes nothing."""
        changed = 0
        for writes, pieces in ((self._copies, self._copy_pieces), (self._exchanges, self._exchange_pieces)):
            for write, differs in zip(writes, _differing(pieces), strict=True):
                changed |= differs << write.entry
        return changed

    def rollback(self) -> None:
        """Restore the values from before `apply`, also when it was interrupted; does nothing without an `apply`."""
        while self._exchanged:
            piece = self._exchanged.pop()
            _exchange(*piece, self._temporary_for(piece[0]))
        copied, self._copied = self._copied, []
        copy_all([self._copies[i].target for i in copied], [self._saved[i] for i in copied])

    def finalize(self) -> None:
        """Forget the old values."""
        self._exchanged = []
        self._copied = []

    def _save(self, which: list[int]) -> None:
        """Copy old values into memory that is kept from sync to sync: fresh pages cost more than the copy."""
        targets = [write.target for write in self._copies]
        if not self._saved:
            self._saved = [torch.empty_like(target, memory_format=torch.contiguous_format) for target in targets]
        copy_all([self._saved[i] for i in which], [targets[i] for i in which])
        self._copied = which


def _alike(write: Write) -> bool:
    target, source = write.target, write.source
    same = target.dtype == source.dtype and target.device == source.device
    return same and target.is_contiguous() and source.is_contiguous()


def _pieces(write: Write) -> list[tuple[Tensor, Tensor]]:
    """Both ends of a write as integers, cut into pieces."""
    target, source = as_integers(write.target.reshape(-1)), as_integers(write.source.reshape(-1))
    size = _piece(target)
    return list(zip(torch.split(target, size), torch.split(source, size), strict=True))


def _slabs(write: Write) -> list[tuple[Tensor, Tensor]]:
    """Both ends of a write, cut along the first dimension; as integers if the dtypes are equal."""
    target, source = write.target, write.source
    if target.dtype == source.dtype:
        target, source = as_integers(target), as_integers(source)
    if not target.ndim:
        target, source = target[None], source[None]
    rows = max(1, _piece(target) * len(target) // max(1, target.numel()))
    return list(zip(torch.split(target, rows), torch.split(source, rows), strict=True))


def _piece(tensor: Tensor) -> int:
    return PIECE_ELEMENTS if tensor.device.type == "cpu" else DEVICE_PIECE_ELEMENTS


def differing(writes: Sequence[Write]) -> Iterator[bool]:
    """Whether each write would change a bit of its target."""
    return _differing([_slabs(write) for write in writes])


def _differing(writes: Sequence[Sequence[tuple[Tensor, Tensor]]]) -> Iterator[bool]:
    """Whether each write changes a bit of its target; all writes on a GPU are compared before the first result."""
    flags: dict[int, Tensor] = {}
    for i, pieces in enumerate(writes):
        if pieces and pieces[0][0].device.type != "cpu":
            flags[i] = torch.stack([(a != b).any() for a, b in map(_comparable, pieces)]).any()
    found = dict(zip(flags, torch.stack(list(flags.values())).tolist() if flags else [], strict=True))
    for i, pieces in enumerate(writes):
        yield found[i] if i in found else _differs(pieces)


def _differs(pieces: Sequence[tuple[Tensor, Tensor]]) -> bool:
    for target, source in pieces:
        if target.dtype is source.dtype:
            if not torch.equal(target, source):
                return True
        elif not torch.equal(*_comparable((target, source))):
            return True
    return False


def _comparable(piece: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    target, source = piece
    if target.dtype is source.dtype and target.device == source.device:
        return piece
    return as_integers(target), as_integers(source.to(target))


def as_integers(tensor: Tensor) -> Tensor:
    """The tensor as integers of the same size: -0.0 and 0.0 differ, a NaN is equal to itself."""
    if tensor.itemsize > MAX_INTEGER_BYTES:
        return torch.view_as_real(tensor).view(torch.int64)
    return tensor.detach().view(_INTEGERS[tensor.itemsize])


def _exchange(a: Tensor, b: Tensor, temporary: Tensor) -> None:
    old = temporary if temporary.numel() == a.numel() else temporary[: a.numel()]
    with torch.no_grad():
        old.copy_(a)
        a.copy_(b)
        b.copy_(old)
