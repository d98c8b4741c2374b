"""Segments: the large buffers of a value, written once into memory that every process of the host can map.

A segment is an anonymous file (memfd) of the process that puts a value. A reader opens it through `/proc`, and maps it
privately (`mappings.py`). The file has no name: it ends with the last process that holds it, however that process ends,
and the size of /dev/shm does not limit it.

A file that nobody needs any more is written again for the next value, because its memory is there already: new memory
costs several times the copy. Nobody needs it when the ref of its value is out of scope in the cluster, and no reader
has the shared lock that each mapping keeps. Its first page has a number that grows with each value, so that a reader
that comes too late knows it. A file that is free for `IDLE_SECONDS` is closed.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from functools import partial
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any, Final

from twinkle_ray.copy_threads import COPY_THREADS, WORTH_THREADS, run_together
from twinkle_ray.objects.shared_memory.janitor import IDLE_SECONDS, clean_while
from twinkle_ray.objects.shared_memory.segment_ref import SegmentRef

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGE: Final = mmap.PAGESIZE
_NAME: Final = "twinkle-segment"
_LEFT_FREE: Final = 0.2  # of the host's memory; a store of Ray can write to the disk, a segment cannot
_CONTAINERS: Final = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


class SegmentFile:
    """A file of this process, mapped for writing.

    Args:
        capacity: Its size in bytes, of which only those that were written take memory.

    Raises:
        OSError: The system gives no such file.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.written = 0
        self.number = 0
        self.free_since = 0.0
        self.fd = os.memfd_create(_NAME, os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.fd, capacity)
            self._memory = mmap.mmap(self.fd, capacity)
            self._inode = os.fstat(self.fd).st_ino
        except OSError:
            os.close(self.fd)
            raise

    def begin(self) -> bool:
        """Begin another value; False where a reader still has a mapping of the last one."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        self.number += 1
        self._memory[:8] = self.number.to_bytes(8, "little")
        fcntl.flock(self.fd, fcntl.LOCK_UN)
        return True

    def write(self, buffers: Sequence[Any], starts: Sequence[int], size: int) -> SegmentRef:
        """Copy buffers to their places."""
        import numpy as np  # who has large buffers has loaded it

        whole = np.frombuffer(self._memory, np.uint8)
        for buffer, start in zip(buffers, starts, strict=True):
            source = np.frombuffer(PickleBuffer(buffer).raw(), np.uint8)  # also where its last dim goes first
            _copy(whole[start : start + len(source)], source)
        self.written = max(self.written, size)
        return SegmentRef(os.getpid(), self.fd, self._inode, self.number, size)

    def close(self) -> None:
        """Leave the file to its readers."""
        os.close(self.fd)
        with suppress(BufferError):  # a copy that was interrupted goes on in its thread
            self._memory.close()


def _copy(target: Any, source: Any) -> None:
    """Copy bytes; many at once in several threads, as Ray does."""
    import numpy as np  # as above

    count = min(COPY_THREADS, len(os.sched_getaffinity(0))) if len(source) >= WORTH_THREADS else 1
    step = max(1, -(-len(source) // count))
    starts = range(0, max(1, len(source)), step)
    run_together([partial(np.copyto, target[at : at + step], source[at : at + step]) for at in starts])


class SegmentPool:
    """The segments of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used: set[SegmentFile] = set()
        self._free: list[SegmentFile] = []
        self._returned: deque[SegmentFile] = deque()  # filled by callbacks, which wait for no lock

    def put(self, buffers: Sequence[Any]) -> tuple[SegmentRef, Sequence[int], SegmentFile] | None:
        """Write buffers into a segment.

        Returns:
            It, where each buffer begins in it, and its file, which `release` takes back; None where there is no room,
            or the system has no such files.
        """
        starts, size = [], PAGE
        for buffer in buffers:
            starts.append(size)
            size += -(-memoryview(buffer).nbytes // PAGE) * PAGE
        file = self._file(size)
        if file is None:
            return None
        try:
            segment = file.write(buffers, starts, size)
        except BaseException:
            with self._lock:
                self._used.discard(file)
            file.close()
            raise
        return segment, starts, file

    def release(self, file: SegmentFile) -> None:
        """Take a file back whose value is out of scope; waits for nothing, so that any thread may call it."""
        file.free_since = time.monotonic()
        self._returned.append(file)

    def close(self) -> None:
        """Close all files; readers keep theirs."""
        with self._lock:
            self._take_returned()
            self._close_free()
            for file in self._used:
                file.close()
            self._used.clear()

    def _file(self, size: int) -> SegmentFile | None:
        with self._lock:
            self._take_returned()
            for file in sorted(self._free, key=lambda one: (one.written < size, one.capacity, -one.free_since)):
                if file.capacity < size or (file.written < size and not has_room(size - file.written)):
                    continue
                if file.begin():
                    self._free.remove(file)
                    self._used.add(file)
                    return file
            if not has_room(size):
                self._close_free()
                if not has_room(size):
                    return None
            try:
                file = SegmentFile(1 << (size - 1).bit_length())
            except OSError:
                return None
            file.begin()
            self._used.add(file)
        clean_while(self._close_idle)
        return file

    def _close_free(self) -> None:
        for file in self._free:
            file.close()
        self._free.clear()

    def _take_returned(self) -> None:
        while self._returned:
            file = self._returned.popleft()
            if file in self._used:
                self._used.remove(file)
                self._free.append(file)

    def _close_idle(self) -> bool:
        """Close files that are free for long; returns whether any are left."""
        with self._lock:
            self._take_returned()
            since = time.monotonic() - IDLE_SECONDS
            for file in [one for one in self._free if one.free_since <= since]:
                self._free.remove(file)
                file.close()
            return bool(self._used or self._free)


def available() -> bool:
    """Whether this system has anonymous files that other processes of the user can open."""
    return sys.platform == "linux" and hasattr(os, "memfd_create") and os.path.exists(f"/proc/{os.getpid()}/fd")


def has_room(size: int) -> bool:
    """Whether so many bytes leave a fifth of the host's memory, and of this container's, free."""
    total, free = _memory()
    return free - size >= _LEFT_FREE * total


def _memory() -> tuple[int, int]:
    """Bytes of memory that there are, and that are free."""
    fields = {}
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            name, value = line.split(":")
            fields[name] = 1024 * int(value.split()[0])
            if name == "MemAvailable":
                break
    total, free = fields["MemTotal"], fields["MemAvailable"]
    for folder, limit_name, used_name, cached_name in _CONTAINERS:
        with suppress(OSError, ValueError):  # another version of control groups, or no limit
            limit, used = _number(f"{folder}/{limit_name}"), _number(f"{folder}/{used_name}")
            with open(f"{folder}/memory.stat", encoding="ascii") as file:
                cached = next((int(line.split()[1]) for line in file if line.startswith(f"{cached_name} ")), 0)
            total, free = min(total, limit), min(free, limit - used + cached)
    return total, free


def _number(path: str) -> int:
    with open(path, encoding="ascii") as file:
        return int(file.read())


def _forget_parent() -> None:
    """In a forked process: leave the segments to the parent."""
    global pool
    for file in (*pool._used, *pool._free, *pool._returned):
        with suppress(OSError):  # another thread of the parent had closed it
            file.close()
    pool = SegmentPool()


pool = SegmentPool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)
