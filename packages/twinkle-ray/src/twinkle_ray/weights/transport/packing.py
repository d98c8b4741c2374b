"""The memory of a transfer's blocks: small ones lie in one buffer, larger ones are contiguous tensors of their own."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from twinkle_ray.copy_threads import COPY_THREADS, WORTH_THREADS, run_together
from twinkle_ray.torch_internals import copy_each
from twinkle_ray.weights.manifest import torch_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

SMALL_BYTES = 64 * 1024
_ALIGNMENT = 256  # a view of any dtype can start there


class Slot(NamedTuple):
    """The place of one block: at a byte of the buffer of small blocks, or as a tensor of its own (-1)."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int
    nbytes: int


def slots_of(blocks: Sequence[tuple[tuple[int, ...], str, int]]) -> list[Slot]:
    """The places of blocks, which both ends compute from their shapes, dtypes and bytes."""
    slots, end = [], 0
    for shape, wire, nbytes in blocks:
        start = -1
        if nbytes < SMALL_BYTES:
            start = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = start + nbytes
        slots.append(Slot(shape, torch_dtype(wire), start, nbytes))
    return slots


def empty_parts(slots: Sequence[Slot], device: torch.device, *, pinned: bool = False) -> list[Tensor]:
    """Memory for all blocks: the buffer of the small ones first, then each larger one."""
    small = max((slot.start + slot.nbytes for slot in slots), default=0)
    parts = [torch.empty(max(0, small), dtype=torch.uint8, device=device, pin_memory=pinned)]
    for slot in slots:
        if slot.start < 0:
            parts.append(torch.empty(slot.shape, dtype=slot.dtype, device=device, pin_memory=pinned))
    return parts


def views(slots: Sequence[Slot], parts: Sequence[Tensor]) -> list[Tensor]:
    """Each block as a typed view of its memory."""
    small, larger = parts[0], iter(parts[1:])
    return [
        next(larger)
        if slot.start < 0
        else small[slot.start : slot.start + slot.nbytes].view(slot.dtype).view(slot.shape)
        for slot in slots
    ]


def packed(slots: Sequence[Slot], blocks: Sequence[Tensor], *, own: bool) -> list[Tensor]:
    """The blocks in their memory in transit.

    Args:
        slots: Their places.
        blocks: The blocks; those with another dtype are cast.
        own: Copy all, so that nothing that the source writes later is seen; otherwise a larger block that is contiguous
            and has its dtype in transit stays where it is.
    """
    device = blocks[0].device if blocks else torch.device("cpu")
    small = max((slot.start + slot.nbytes for slot in slots), default=0)
    parts = [torch.empty(max(0, small), dtype=torch.uint8, device=device)]
    copies: list[tuple[Tensor, Tensor]] = []
    for slot, block in zip(slots, blocks, strict=True):
        if slot.start >= 0:
            copies.append((parts[0][slot.start : slot.start + slot.nbytes].view(slot.dtype).view(slot.shape), block))
        elif not own and block.dtype == slot.dtype and block.is_contiguous():
            parts.append(block.detach())
        else:
            parts.append(torch.empty(slot.shape, dtype=slot.dtype, device=block.device))
            copies.append((parts[-1], block))
    copy_all([target for target, _ in copies], [source for _, source in copies])
    return parts


def to_host(parts: Sequence[Tensor], kept: Sequence[Tensor] | None) -> list[Tensor]:
    """The parts of a GPU in pinned memory of the host, which takes a quarter of the time that other memory does.

    Args:
        parts: All on one device.
        kept: Pinned memory of an earlier call for the same parts, which is written again; None for new memory.
    """
    if kept is None:
        kept = [torch.empty(part.shape, dtype=part.dtype, pin_memory=True) for part in parts]
    for target, part in zip(kept, parts, strict=True):
        target.copy_(part, non_blocking=True)
    torch.cuda.synchronize(parts[0].device)
    return list(kept)


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy block by block; a copy converts if the dtypes differ, and keeps the bits otherwise."""
    if not targets:
        return
    if any(target.dtype.itemsize == 1 for target in targets):
        targets, sources = list(map(_bits, targets, sources)), list(map(_bits, sources, targets))
    nbytes = sum([target.nbytes for target in targets])
    on_host = all(target.is_cpu and source.is_cpu for target, source in zip(targets, sources, strict=True))
    if nbytes < WORTH_THREADS or torch.get_num_threads() > 1 or not on_host:
        _copy_blocks(targets, sources)
    else:
        _copy_in_threads(targets, sources, nbytes // COPY_THREADS)


def _copy_blocks(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    with torch.no_grad():  # counts for one thread
        copy_each(targets, sources)


def _copy_in_threads(targets: Sequence[Tensor], sources: Sequence[Tensor], share: int) -> None:
    """Copy with a few threads, about `share` bytes each; all is on the host."""
    shares: list[tuple[list[Tensor], list[Tensor]]] = [([], [])]
    room = share
    for target, source in zip(targets, sources, strict=True):
        rows = max(1, share * len(target) // target.nbytes) if target.ndim and target.nbytes else 1
        pieces = [(target, source)]
        if target.ndim and len(target) > rows:
            pieces = list(zip(torch.split(target, rows), torch.split(source, rows), strict=True))
        for piece in pieces:
            if room <= 0:
                shares.append(([], []))
                room = share
            shares[-1][0].append(piece[0])
            shares[-1][1].append(piece[1])
            room -= piece[0].nbytes
    run_together([partial(_copy_blocks, *share) for share in shares])


def _bits(tensor: Tensor, other: Tensor) -> Tensor:
    """One-byte dtypes as plain bytes if both ends have the same: some devices cannot copy float8."""
    if tensor.itemsize == 1 and tensor.dtype == other.dtype and tensor.dtype != torch.uint8:
        return tensor.view(torch.uint8)
    return tensor


def in_a_row(tensor: Tensor) -> Tensor:
    """The elements in one dimension with the stride 1, so that torch can view them as another dtype; a view if it can.

    A dim of one element has any stride in a tensor that torch calls contiguous.
    """
    whole = tensor.detach().contiguous()
    return whole.as_strided((whole.numel(),), (1,))
