"""Source and target on one host: the target maps anonymous shared memory, which ends with its processes."""

from __future__ import annotations

import mmap
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from twinkle_ray.weights.transport.packing import copy_all, slot_views

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_ray.weights.planning.buckets import Bucket


def available() -> bool:
    """Whether another process of the same user may open this process's memory files (Linux)."""
    return sys.platform == "linux" and os.path.exists(f"/proc/{os.getpid()}/fd")


@dataclass(frozen=True, slots=True)
class Segment:
    """A memory file of another process: `fd` in process `pid`; the inode tells it from a later file of that number."""

    pid: int
    fd: int
    inode: int
    size: int


class SharedBlockStore:
    """Packs each bucket into its own memory file, which the next sync fills again.

    An anonymous file (memfd) has no name: it ends with the processes that hold it, and the size of /dev/shm does not
    limit it.
    """

    def __init__(self) -> None:
        self._files: dict[tuple[int, int], tuple[int, Sequence[Tensor]]] = {}
        self._maps: dict[tuple[int, Segment], Sequence[Tensor]] = {}

    def put(self, bucket: Bucket, blocks: Sequence[Tensor], *, copy: bool) -> object:
        """Copy the blocks into shared memory, whatever `copy` is."""
        fd, views = self._file(bucket)
        copy_all(views, blocks)
        return Segment(os.getpid(), fd, os.fstat(fd).st_ino, bucket.nbytes)

    def get(self, bucket: Bucket, handle: object) -> Sequence[Tensor]:
        """Map the source's memory.

        Raises:
            OSError: If the source is gone, or belongs to another user.
        """
        assert isinstance(handle, Segment)
        blocks = self._maps.get((bucket.index, handle))
        if blocks is None:
            fd = os.open(f"/proc/{handle.pid}/fd/{handle.fd}", os.O_RDWR)
            try:
                if os.fstat(fd).st_ino != handle.inode:
                    raise OSError(f"process {handle.pid} has closed the memory file that it offered")
                buffer = _mapped(fd, handle.size)
            finally:
                os.close(fd)
            blocks = self._maps[bucket.index, handle] = slot_views(bucket, buffer)
        return blocks

    def clear(self) -> None:
        """Keep the memory for the next sync."""

    def close(self) -> None:
        """Unmap and close everything."""
        for fd, _ in self._files.values():
            os.close(fd)
        self._files.clear()
        self._maps.clear()

    def _file(self, bucket: Bucket) -> tuple[int, Sequence[Tensor]]:
        key = (bucket.index, bucket.nbytes)
        if key not in self._files:
            fd = os.memfd_create("twinkle-weights", os.MFD_CLOEXEC)
            try:
                os.posix_fallocate(fd, 0, bucket.nbytes)
                self._files[key] = (fd, slot_views(bucket, _mapped(fd, bucket.nbytes)))
            except OSError:
                os.close(fd)
                raise
        return self._files[key]


def _mapped(fd: int, size: int) -> Tensor:
    return torch.frombuffer(mmap.mmap(fd, size), dtype=torch.uint8)
