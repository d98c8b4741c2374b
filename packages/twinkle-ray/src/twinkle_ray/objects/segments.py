"""Large values of one host: written once into memory that its processes map, each for itself.

A segment is an anonymous file (memfd) of the process that puts a value. A reader opens it through `/proc`, and maps it
privately: it copies only the pages that it writes. The file has no name: it ends with the last process that holds it,
however that process ends, and the size of /dev/shm does not limit it.

A file that nobody needs any more is written again for the next value, because new memory costs several times the copy.
Nobody needs it when the ref of its value is out of scope in the cluster, and no reader has the shared lock of the file
that each mapping keeps. Its first page has a number that grows with each value, by which a reader that comes too late
knows it. A process keeps at most `_KEPT` of the host's memory in such files, and closes the others at once.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import socket
import sys
import threading
import weakref
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import ray

from twinkle_ray.copy_threads import COPY_THREADS, WORTH_THREADS, run_together
from twinkle_ray.objects.pickling import Pickled
from twinkle_ray.ray_internals import when_out_of_scope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ray import ObjectRef

PAGE: Final = mmap.PAGESIZE
WORTH_PLACING: Final = 1 << 20  # bytes of buffers; for fewer, a segment costs more than the copies of their readers
_NAME: Final = "twinkle-segment"
_KEPT: Final = 1 / 32  # of the host's memory
_LEFT_FREE: Final = 0.2  # of the host's memory; a store of Ray can write to the disk, a segment cannot
_MOST_MAPPINGS: Final = 128  # of a process: each has a descriptor
_SMALL: Final = 64 * 1024  # bytes; fewer are copied at once
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_CONTAINER: Final = Path("/sys/fs/cgroup")


class GoneError(Exception):
    """A segment is not there any more."""


class SegmentRef(NamedTuple):
    """A segment, for its readers: a file of a process, the number of the value in it, and where that ends."""

    pid: int
    fd: int
    inode: int
    number: int
    size: int


class SegmentFile:
    """A file of this process, mapped for writing.

    Args:
        capacity: Its size in bytes, of which only those that were written take memory.

    Raises:
        OSError: The system gives no such file.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.written = self.number = 0
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
        self._free: deque[SegmentFile] = deque()  # filled by callbacks of Ray, which wait for no lock

    def put(self, buffers: Sequence[Any]) -> tuple[SegmentRef, Sequence[int], SegmentFile] | None:
        """Write buffers into a segment; returns it, where each buffer begins in it, and its file for `release`.

        None where there is no room, or the system has no such files.
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
            self._used.discard(file)
            file.close()
            raise
        return segment, starts, file

    def release(self, file: SegmentFile) -> None:
        """Take a file back whose value is out of scope; waits for nothing, so that any thread may call it."""
        if file not in self._used:  # the pool was closed
            return
        self._used.discard(file)
        if file.written + sum([one.written for one in tuple(self._free)]) <= _KEPT * _total():
            self._free.append(file)
        else:
            file.close()

    def close(self) -> None:
        """Close all files; readers keep theirs."""
        with self._lock:
            used, self._used = self._used, set()
            for file in used:
                file.close()
            self._close_free()

    def _file(self, size: int) -> SegmentFile | None:
        with self._lock:
            for _ in range(len(self._free)):
                file = self._free.popleft()
                fits = file.capacity >= size and (file.written >= size or has_room(size - file.written))
                if fits and file.begin():
                    self._used.add(file)
                    return file
                self._free.append(file)
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
            return file

    def _close_free(self) -> None:
        while self._free:
            self._free.popleft().close()


def has_room(size: int) -> bool:
    """Whether so many bytes leave a fifth of the host's memory, and of this container's, free."""
    total, free = _memory()
    return free - size >= _LEFT_FREE * total


@cache
def _total() -> int:
    return _memory()[0]


def _memory() -> tuple[int, int]:
    """Bytes of memory that there are, and that are free."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    fields = {name: 1024 * int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    total, free = fields["MemTotal"], fields["MemAvailable"]
    with suppress(OSError, ValueError):  # no control group, or no limit
        limit, used = (int((_CONTAINER / name).read_text()) for name in ("memory.max", "memory.current"))
        cached = re.search(r"^inactive_file (\d+)", (_CONTAINER / "memory.stat").read_text(), re.MULTILINE)
        total, free = min(total, limit), min(free, limit - used + int(cached[1] if cached else 0))
    return total, free


_live: dict[int, weakref.ref[Any]] = {}
"""The mappings that are in use, by their address: an array of bytes over each."""


def opened(segment: SegmentRef, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
    """The buffers of a segment, read-only; `own` makes arrays of them that may be written.

    Args:
        segment: The segment.
        spans: Where each buffer begins, and its size in bytes.

    Raises:
        GoneError: Its process has ended, or needs it no more.
        PermissionError: Its process belongs to another user.
    """
    import numpy as np  # who reads large buffers needs it

    memory = _mapped(segment)
    root: Any = np.frombuffer(memory, np.uint8)
    if len(_live) < _MOST_MAPPINGS:
        address = int(root.__array_interface__["data"][0])
        _live[address] = weakref.ref(root, lambda _: _live.pop(address, None))
    else:
        root = root.copy()
    view = memoryview(root).toreadonly()
    return [view[start : start + size] for start, size in spans]


def _mapped(segment: SegmentRef) -> mmap.mmap:
    """A private mapping; it keeps the shared lock of the file, which a forked child shares with it."""
    try:
        fd = os.open(f"/proc/{segment.pid}/fd/{segment.fd}", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError) as error:
        raise GoneError(f"process {segment.pid} has ended, or has closed it: {error}") from error
    try:
        if os.fstat(fd).st_ino != segment.inode:
            raise GoneError(f"process {segment.pid} has closed it")
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        memory = mmap.mmap(fd, segment.size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    except BlockingIOError as error:
        raise GoneError(f"process {segment.pid} writes another value there") from error
    finally:
        os.close(fd)  # the mapping has a descriptor of its own, of the same open file
    if int.from_bytes(memory[:8], "little") != segment.number:
        raise GoneError(f"process {segment.pid} has written another value there")
    return memory


def own(array: Any) -> Any:
    """An array that may be written: the same pages where it lies in a mapping of its reader, else a copy.

    An array that has its own memory, which may be written, was made for this reader.
    """
    if array.flags.owndata and array.flags.writeable:
        return array
    if array.nbytes >= _SMALL and array.flags.c_contiguous:
        at = int(array.__array_interface__["data"][0])
        for address, root in list(_live.items()):
            whole = root()
            if whole is not None and 0 <= at - address <= len(whole) - array.nbytes:
                start = at - address
                return whole[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    return array.copy(order="C")


@dataclass(frozen=True, slots=True)
class Placed:
    """A pickled value, its head and the object refs in it, whose buffers lie in spans (begin, bytes) of a segment."""

    head: bytes
    refs: tuple[ObjectRef[Any], ...]
    segment: SegmentRef
    spans: tuple[tuple[int, int], ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return Placed, (self.head, self.refs, self.segment, self.spans)

    def mapped(self) -> Pickled:
        """The pickled value, over a private mapping of this process.

        Raises:
            GoneError: The process that has put it has ended.
        """
        return Pickled(self.head, opened(self.segment, self.spans), self.refs)

    def open(self) -> Any:
        """The value; large arrays are views of a private mapping."""
        return self.mapped().open()

    @property
    def nbytes(self) -> int:
        """Bytes of the head and the buffers."""
        return len(self.head) + sum(size for _, size in self.spans)


def place(pickled: Pickled) -> tuple[ObjectRef[Any], Placed] | None:
    """Copy the buffers of a pickled value into a segment that lives as long as the returned ref of the placed value.

    None where that is no gain.
    """
    if not _allowed or sum([memoryview(buffer).nbytes for buffer in pickled.buffers]) < WORTH_PLACING:
        return None
    owner = pool
    found = owner.put(pickled.buffers)
    if found is None:
        return None
    segment, starts, file = found
    spans = [(start, memoryview(buffer).nbytes) for start, buffer in zip(starts, pickled.buffers, strict=True)]
    placed = Placed(bytes(pickled.head), pickled.refs, segment, tuple(spans))
    kept = False
    try:
        ref: ObjectRef[Any] = ray.put(placed)
        kept = when_out_of_scope(ref, lambda: owner.release(file))
    finally:
        if not kept:
            owner.release(file)
    return (ref, placed) if kept else None


_allowed = False


def allow(*, placing: bool) -> None:
    """From now on, large values of this process are placed in segments, or not."""
    global _allowed
    _allowed = placing and sys.platform == "linux"


def host_identity() -> str:
    """Equal for two processes that can open each other's memory: one kernel, one pid namespace, one user."""
    if not os.path.exists(_BOOT_ID):
        return f"{socket.gethostname()}/{os.getuid()}"
    boot = Path(_BOOT_ID).read_text(encoding="ascii").strip()
    return f"{boot}/{os.readlink('/proc/self/ns/pid')}/{os.getuid()}"


def stop_sharing() -> None:
    """Share nothing any more; readers keep what they have mapped."""
    allow(placing=False)
    pool.close()


def _forget_parent() -> None:
    """In a forked process: leave the segments to the parent."""
    global pool
    for file in (*pool._used, *pool._free):
        with suppress(OSError):  # another thread of the parent had closed it
            file.close()
    pool = SegmentPool()


pool = SegmentPool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)
