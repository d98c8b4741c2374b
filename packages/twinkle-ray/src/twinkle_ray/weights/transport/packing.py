"""Copies into and out of a bucket's bytes, and their checksum."""

from __future__ import annotations

import mmap
import zlib
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from twinkle_ray.copy_threads import COPY_THREADS, WORTH_THREADS, run_together
from twinkle_ray.torch_internals import copy_each
from twinkle_ray.weights.planning.manifest import item_size, torch_dtype
from twinkle_ray.weights.shards.memory import in_a_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_ray.weights.planning.buckets import Bucket

HUGE_BYTES = 4 << 20  # twice the usual size of a huge page


def slot_views(bucket: Bucket, buffer: Tensor) -> list[Tensor]:
    """Each slot of a bucket as a typed view of its bytes."""
    views: list[Tensor] = []
    for slot in bucket.slots:
        size = slot.box.volume * item_size(slot.wire)
        views.append(buffer[slot.offset : slot.offset + size].view(torch_dtype(slot.wire)).view(slot.box.shape))
    return views


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy block by block; a copy converts if the dtypes differ, and keeps the bits otherwise."""
    if not targets:
        return
    if any(dtype.itemsize == 1 for dtype in {target.dtype for target in targets}):
        targets, sources = list(map(_bits, targets, sources)), list(map(_bits, sources, targets))
    nbytes = sum([target.nbytes for target in targets])
    if nbytes < WORTH_THREADS or torch.get_num_threads() > 1 or not _on_host(targets, sources):
        _copy_blocks(targets, sources)
    else:
        _copy_in_threads(targets, sources, nbytes // COPY_THREADS)


def _copy_blocks(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    with torch.no_grad():  # counts for one thread
        copy_each(targets, sources)


def _on_host(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> bool:
    return all(target.is_cpu and source.is_cpu for target, source in zip(targets, sources, strict=True))


def _copy_in_threads(targets: Sequence[Tensor], sources: Sequence[Tensor], share: int) -> None:
    """Copy with a few threads.

    Args:
        targets: All on the host.
        sources: Likewise.
        share: Bytes of one thread, about.
    """
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


def empty_bytes(nbytes: int, device: torch.device) -> Tensor:
    """Uninitialised bytes; on the CPU, large buffers lie in huge pages where the system has them."""
    if device.type == "cpu" and nbytes >= HUGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
        return torch.frombuffer(memory, dtype=torch.uint8)
    return torch.empty(nbytes, dtype=torch.uint8, device=device)


def is_kept(device: torch.device) -> bool:
    """Whether memory for what arrives is kept from sync to sync: fresh pages of a host cost more than a copy.

    That of other devices is what models compute in: it is given back when a sync is over.
    """
    return device.type == "cpu"


def checksum(blocks: Sequence[Tensor]) -> int:
    """CRC-32 of the bytes of all blocks, in order."""
    value = 0
    for block in blocks:
        flat = in_a_row(block).view(torch.uint8).cpu()
        value = zlib.crc32(flat.numpy().data, value)
    return value
