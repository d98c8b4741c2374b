"""Source and target on one host: the target maps anonymous shared memory, which ends with its processes."""

from __future__ import annotations

import logging
import mmap
import os
import sys
import weakref
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from twinkle_ray.weights.planning.buckets import bucket_offsets
from twinkle_ray.weights.replacement.parameter_buffer import ParameterBuffer
from twinkle_ray.weights.transport.packing import copy_all, slot_views

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from twinkle_ray.weights.messages import MemoryFile
    from twinkle_ray.weights.planning.buckets import Bucket
    from twinkle_ray.weights.transport.protocol import Filled

_PAGE = mmap.PAGESIZE
_PAGEMAP = "/proc/self/pagemap"
_OF_FILE, _IN_MEMORY_OR_SWAP = np.uint64(1 << 61), np.uint64(3 << 62)  # bits of an entry in it


def available() -> bool:
    """Whether another process of the same user may open this process's memory files (Linux)."""
    return sys.platform == "linux" and os.path.exists(f"/proc/{os.getpid()}/fd")


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a memory file of another process.

    Attributes:
        pid: The process.
        fd: Its descriptor of the file.
        inode: Of the file; a later file of that descriptor has another one.
        size: Of the file in bytes.
        offset: Of the part.
    """

    pid: int
    fd: int
    inode: int
    size: int
    offset: int


@dataclass(slots=True, eq=False, weakref_slot=True)
class _Mapping:
    """A mapped memory file.

    Attributes:
        memory: The mapping.
        buffer: Its bytes, and the file.
        fd: The open file; -1 where another process keeps it.
        blocks: The blocks of each bucket that was asked for.
        used: Number of the latest sync that used it.
        pinned: Whether it was offered to CUDA as memory that GPUs copy to directly.
    """

    memory: mmap.mmap
    buffer: ParameterBuffer
    fd: int = -1
    blocks: dict[int, Sequence[Tensor]] = field(default_factory=dict)
    used: int = 0
    pinned: bool = False

    def views(self, bucket: Bucket, offset: int) -> Sequence[Tensor]:
        """The blocks of a bucket that starts at an offset."""
        if bucket.index not in self.blocks:
            self.blocks[bucket.index] = slot_views(bucket, self.buffer.memory[offset : offset + bucket.nbytes])
        return self.blocks[bucket.index]


class SharedBlockStore:
    """Packs the buckets for the same targets into one memory file, which a later sync fills again.

    An anonymous file (memfd) has no name: it ends with the processes that hold it, and the size of /dev/shm does not
    limit it. A file in which tensors of a target live is not written; there are two then, in turns.

    Args:
        buckets: Those of this rank that travel through shared memory.
        private: Map files of other processes such that this process's writes reach neither the file nor another
            process, so that its tensors may live there.
    """

    def __init__(self, buckets: Iterable[Bucket], *, private: bool = False) -> None:
        self._private = private
        self._together: defaultdict[tuple[int, ...], list[Bucket]] = defaultdict(list)
        for bucket in buckets:
            self._together[bucket.targets].append(bucket)
        self._offsets: dict[tuple[int, ...], tuple[dict[int, int], int]] = {}
        self._files: dict[tuple[int, ...], list[_Mapping]] = {}
        self._chosen: dict[tuple[int, ...], _Mapping] = {}
        self._occupied: frozenset[MemoryFile] | None = frozenset()
        self._maps: dict[MemoryFile, _Mapping] = {}
        self._sync = 0

    def begin(self, occupied: frozenset[MemoryFile] | None) -> None:
        """Begin a sync: no file in which a tensor of a target lives is written."""
        self._sync += 1
        self._occupied = occupied
        self._chosen.clear()
        self._maps = {file: mapping for file, mapping in self._maps.items() if mapping.used >= self._sync - 2}
        for file, mapping in self._maps.items():
            if self._private and occupied is not None and file not in occupied:
                _forget_writes(mapping)  # while the source packs

    def put(self, buckets: Sequence[Filled], *, copy: bool) -> Sequence[object]:
        """Copy the blocks of all buckets into shared memory at once, whatever `copy` is."""
        targets: list[Tensor] = []
        handles = [self._place(*filled, targets) for filled in buckets]
        copy_all(targets, [block for _, blocks in buckets for block in blocks])
        return handles

    def _place(self, bucket: Bucket, blocks: Sequence[Tensor], targets: list[Tensor]) -> Segment:
        """Append the memory of a bucket's blocks to `targets`; returns where it is."""
        mapping = self._chosen.get(bucket.targets) or self._choose(bucket.targets)
        offset = self._offsets[bucket.targets][0][bucket.index]
        if not mapping.pinned and blocks and blocks[0].device.type == "cuda":
            mapping.pinned = True
            pin(mapping.buffer.memory, mapping)
        targets.extend(mapping.views(bucket, offset))
        assert mapping.buffer.file is not None
        pid, inode = mapping.buffer.file
        return Segment(pid, mapping.fd, inode, mapping.buffer.memory.numel(), offset)

    def get(self, bucket: Bucket, handle: object) -> Sequence[Tensor]:
        """Map the source's memory.

        Raises:
            OSError: If the source is gone, or belongs to another user.
        """
        assert isinstance(handle, Segment)
        mapping = self._maps.get((handle.pid, handle.inode))
        if mapping is None:
            mapping = self._maps[handle.pid, handle.inode] = self._opened(handle)
        mapping.used = self._sync
        return mapping.views(bucket, handle.offset)

    def buffers(self) -> list[ParameterBuffer]:
        """The memory of other processes that is mapped, where tensors may live in it."""
        return [mapping.buffer for mapping in self._maps.values()] if self._private else []

    def clear(self) -> None:
        """Keep the memory for the next sync."""

    def close(self) -> None:
        """Close everything; memory in which tensors live ends with them."""
        for mapping in (mapping for files in self._files.values() for mapping in files):
            os.close(mapping.fd)
        for kept in (self._files, self._chosen, self._maps):
            kept.clear()

    def _choose(self, targets: tuple[int, ...]) -> _Mapping:
        """A file for the buckets of these targets, in which no tensor lives; others that are free are closed."""
        files = self._files.setdefault(targets, [])
        free = [] if self._occupied is None else [one for one in files if one.buffer.file not in self._occupied]
        if targets not in self._offsets:
            self._offsets[targets] = bucket_offsets(self._together[targets])
        chosen = free[0] if free else _created(self._offsets[targets][1])
        kept = [one for one in files if one not in free[1:] and self._occupied is not None]
        for mapping in files:
            if mapping not in kept:
                os.close(mapping.fd)
        self._files[targets] = kept if free else [*kept, chosen]
        self._chosen[targets] = chosen
        return chosen

    def _opened(self, handle: Segment) -> _Mapping:
        fd = os.open(f"/proc/{handle.pid}/fd/{handle.fd}", os.O_RDONLY if self._private else os.O_RDWR)
        try:
            if os.fstat(fd).st_ino != handle.inode:
                raise OSError(f"process {handle.pid} has closed the memory file that it offered")
            flags = mmap.MAP_PRIVATE if self._private else mmap.MAP_SHARED
            memory = mmap.mmap(fd, handle.size, flags, mmap.PROT_READ | mmap.PROT_WRITE)
        finally:
            os.close(fd)
        return _Mapping(memory, ParameterBuffer(_bytes(memory), (handle.pid, handle.inode)))


def _created(size: int) -> _Mapping:
    fd = os.memfd_create("twinkle-weights", os.MFD_CLOEXEC)
    try:
        os.posix_fallocate(fd, 0, size)
        memory = mmap.mmap(fd, size)
    except OSError:
        os.close(fd)
        raise
    return _Mapping(memory, ParameterBuffer(_bytes(memory), (os.getpid(), os.fstat(fd).st_ino)), fd)


def _bytes(memory: mmap.mmap) -> Tensor:
    return torch.frombuffer(memory, dtype=torch.uint8)


def _forget_writes(mapping: _Mapping) -> None:
    """Have a private mapping show the file again where this process has written to it.

    A page that was written is a copy of this process. Pages that are as in the file stay mapped: to map them again
    costs a quarter of the copy of the values.
    """
    pages = -(-mapping.buffer.memory.numel() // _PAGE)
    # Where the kernel does not say which pages were written, all of them are mapped again.
    with suppress(OSError), open(_PAGEMAP, "rb", buffering=0) as file:
        read = os.pread(file.fileno(), 8 * pages, mapping.buffer.memory.data_ptr() // _PAGE * 8)
        entries = np.frombuffer(read, dtype=np.uint64)
        written = (entries & _OF_FILE == 0) & (entries & _IN_MEMORY_OR_SWAP != 0)
        if len(entries) == pages and not written.any():
            return
    mapping.memory.madvise(mmap.MADV_DONTNEED)


_cuda: Any = torch.cuda  # torch has no types for its runtime
_log = logging.getLogger("twinkle.ray")


def pin(buffer: Tensor, owner: object) -> bool:
    """Pin memory for as long as its owner lives.

    Args:
        buffer: Contiguous memory of the host, which outlives the owner.
        owner: The memory is free again when it ends.

    Returns:
        Whether it is pinned; where the system has a limit on pinned memory, copies are slower, and the log says so.
    """
    runtime = _cuda.cudart()
    code = int(runtime.cudaHostRegister(buffer.data_ptr(), buffer.nbytes, 0))
    if code:
        _log.info("%d bytes for a weight sync were not pinned (CUDA error %d): copies are slower", buffer.nbytes, code)
        return False
    weakref.finalize(owner, runtime.cudaHostUnregister, buffer.data_ptr())
    return True
