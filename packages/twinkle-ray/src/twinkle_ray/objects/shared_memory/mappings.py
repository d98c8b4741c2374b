"""Private mappings of segments: each reader has a value of its own, and copies only the pages that it writes.

A mapping keeps a shared lock of the file, by which the owner of a segment knows that it is read; it goes with the
process, also after a SIGKILL. A mapping whose arrays are gone and in which nothing was written is kept for
`IDLE_SECONDS`, without the lock: its pages are those of the file, whatever the owner writes there, so the next value
in that file is read without mapping its pages anew.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from collections import deque
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from twinkle_ray.objects.shared_memory.janitor import IDLE_SECONDS, clean_while
from twinkle_ray.objects.shared_memory.segment_ref import GoneError
from twinkle_ray.objects.shared_memory.segments import PAGE
from twinkle_ray.python_internals import map_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_ray.objects.shared_memory.segment_ref import SegmentRef

_MOST: Final = 128  # mappings at a time: each has two descriptors
_KEPT: Final = 16
_SMALL: Final = 64 * 1024  # bytes; fewer are copied at once
_WORTH_MAPPING: Final = 1 << 20  # bytes; fewer are joined in the time that it takes to map them
_PAGEMAP: Final = "/proc/self/pagemap"
_OF_FILE, _IN_MEMORY_OR_SWAP = 1 << 61, 3 << 62  # bits of an entry in it


class _PrivateMapping:
    """A mapped segment.

    Attributes:
        key: Process and inode of the file; None where parts of several files are mapped.
        memory: Its pages.
        address: Where they begin.
        size: Bytes that are mapped.
        fds: Keep the locks.
        free_since: When its last array went.
    """

    __slots__ = ("__weakref__", "address", "fds", "free_since", "key", "memory", "size")

    def __init__(self, key: tuple[int, int] | None, memory: mmap.mmap) -> None:
        import numpy as np  # who reads large buffers needs it

        self.key, self.memory, self.size = key, memory, len(memory)
        self.address = int(np.frombuffer(memory, np.uint8).__array_interface__["data"][0])
        self.fds: Sequence[int] = ()
        self.free_since = 0.0


_live: dict[int, tuple[_PrivateMapping, weakref.ref[Any]]] = {}
_kept: deque[_PrivateMapping] = deque()


def opened(segment: SegmentRef, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
    """The buffers of a segment, read-only; `own` makes arrays of them that may be written.

    Args:
        segment: The segment.
        spans: Where each buffer begins, and its size in bytes.

    Raises:
        GoneError: Its process has ended, or needs it no more.
        PermissionError: Its process belongs to another user.
    """
    fd = _locked(segment)
    try:
        mapping = _mapped(segment, fd)
        if int.from_bytes(mapping.memory[:8], "little") != segment.number:
            raise GoneError(f"process {segment.pid} has written another value there")
    except BaseException:
        os.close(fd)
        raise
    root = _in_use(mapping, [fd]) if len(_live) < _MOST else _copied(mapping, fd)
    view = memoryview(root).toreadonly()
    return [view[start : start + size] for start, size in spans]


def own(array: Any) -> Any:
    """An array that may be written: the same pages where it lies in a mapping of its reader, else a copy.

    An array that has its own memory, which may be written, was made for this reader.
    """
    if array.flags.owndata and array.flags.writeable:
        return array
    if array.nbytes >= _SMALL and array.flags.c_contiguous:
        at = int(array.__array_interface__["data"][0])
        for mapping, root in list(_live.values()):
            start = at - mapping.address
            if 0 <= start <= mapping.size - array.nbytes:
                whole = root()
                if whole is not None:
                    return whole[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    return array.copy(order="C")


def adjoined(arrays: Sequence[Any]) -> Any | None:
    """Rows that lie in several segments as one array, whose pages are mapped one after the other; nothing is copied.

    Args:
        arrays: At least two, of one dtype and one shape but for their rows.

    Returns:
        An array that is not written; None where they do not lie in segments, or do not fill whole pages.
    """
    parts, offset = [], 0
    for array in arrays:
        found = _place_of(array)
        if found is None or offset % PAGE or found[1] % PAGE:
            return None
        parts.append((*found, offset, array.nbytes))
        offset += array.nbytes
    if offset < _WORTH_MAPPING or len(_live) >= _MOST:
        return None
    memory = mmap.mmap(-1, offset, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping = _PrivateMapping(None, memory)
    fds: list[int] = []
    try:
        for source, start, at, size in parts:
            fds.append(_locked_again(source))
            map_at(mapping.address + at, size, fds[-1], start)
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    whole = _in_use(mapping, fds)
    first = arrays[0]
    rows = sum([len(array) for array in arrays])
    joined = whole[:offset].view(first.dtype).reshape(rows, *first.shape[1:])
    joined.flags.writeable = False
    return joined


def _place_of(array: Any) -> tuple[_PrivateMapping, int] | None:
    """The mapping of one file in which an array lies, and where."""
    if not array.flags.c_contiguous or not array.nbytes:
        return None
    at = int(array.__array_interface__["data"][0])
    for mapping, _ in list(_live.values()):
        if mapping.key is not None and 0 <= at - mapping.address <= mapping.size - array.nbytes:
            return mapping, at - mapping.address
    return None


def _locked_again(mapping: _PrivateMapping) -> int:
    """The file of a mapping that is in use, opened once more, with a lock of its own."""
    fd = os.open(f"/proc/self/fd/{mapping.fds[0]}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _locked(segment: SegmentRef) -> int:
    """The opened file of a segment, with a shared lock."""
    path = f"/proc/{segment.pid}/fd/{segment.fd}"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError) as error:
        raise GoneError(f"process {segment.pid} has ended, or has closed it: {error}") from error
    try:
        if os.fstat(fd).st_ino != segment.inode:
            raise GoneError(f"process {segment.pid} has closed it")
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise GoneError(f"process {segment.pid} writes another value there") from error
    except BaseException:
        os.close(fd)
        raise
    return fd


def _mapped(segment: SegmentRef, fd: int) -> _PrivateMapping:
    """A mapping that nobody uses and that shows the file as it is."""
    key = segment.pid, segment.inode
    for _ in range(len(_kept)):
        with suppress(IndexError):  # another thread takes some, too
            kept = _kept.popleft()
            if kept.key == key and kept.size >= segment.size:
                return kept
            if kept.key != key:
                _kept.append(kept)
    # Python's mapping keeps a descriptor of its own; the lock belongs to the open file, which a forked child shares.
    unlocked = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        memory = mmap.mmap(unlocked, segment.size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(unlocked)
    return _PrivateMapping(key, memory)


def _in_use(mapping: _PrivateMapping, fds: Sequence[int]) -> Any:
    import numpy as np  # as above

    mapping.fds = fds
    root = np.frombuffer(mapping.memory, np.uint8)
    number = id(mapping)
    _live[number] = mapping, weakref.ref(root)
    weakref.finalize(root, _let_go, number).atexit = False
    clean_while(_unmap_idle)
    return root


def _copied(mapping: _PrivateMapping, fd: int) -> Any:
    """A copy, where a process has so many mappings that it would run out of descriptors."""
    import numpy as np  # as above

    whole = np.frombuffer(mapping.memory, np.uint8).copy()
    os.close(fd)
    return whole


def _let_go(number: int) -> None:
    """The last array of a mapping is gone; runs wherever Python frees it, and waits for no lock."""
    mapping, _ = _live.pop(number)
    clean = mapping.key is not None and len(_kept) < _KEPT and not _is_written(mapping)
    for fd in mapping.fds:
        os.close(fd)
    mapping.fds, mapping.free_since = (), monotonic()
    if clean:
        _kept.append(mapping)


def _is_written(mapping: _PrivateMapping) -> bool:
    """Whether a page of a mapping was written, and so belongs to this process; True where the kernel does not say."""
    import numpy as np  # as above

    count = -(-mapping.size // PAGE)
    try:
        with open(_PAGEMAP, "rb", buffering=0) as file:
            read = os.pread(file.fileno(), 8 * count, mapping.address // PAGE * 8)
    except OSError:
        return True
    entries = np.frombuffer(read, np.uint64)
    written = (entries & np.uint64(_OF_FILE) == 0) & (entries & np.uint64(_IN_MEMORY_OR_SWAP) != 0)
    return len(entries) < count or bool(written.any())


def unmap_kept() -> None:
    """Unmap what nobody uses."""
    _kept.clear()


def _unmap_idle() -> bool:
    """Unmap what nobody has used for long; returns whether any is left."""
    since = monotonic() - IDLE_SECONDS
    for _ in range(len(_kept)):
        with suppress(IndexError):  # as above
            kept = _kept.popleft()
            if kept.free_since > since:
                _kept.append(kept)
    return bool(_live or _kept)


def _forget_parent() -> None:
    """In a forked process, whose mappings stay readable: the parent's are its own to keep."""
    _kept.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)
