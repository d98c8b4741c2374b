"""Memory for raw buffers, which is allocated as bytes arrive: a false size takes almost no memory."""

from __future__ import annotations

import contextlib
import mmap

Buffer = bytearray | memoryview

_MAPPED_BYTES = 256 * 1024  # smaller buffers are bytearrays
_SMALL_PAGE_BYTES = 2 << 20  # the first part of a large one: it takes a huge page only behind as many bytes
_PRIVATE = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
_HUGE_PAGES = getattr(mmap, "MADV_HUGEPAGE", None)


def new_buffer(size: int) -> Buffer:
    """Writable memory of `size` bytes, whose pages are taken when they are first written.

    Large buffers ask for huge pages (Linux: madvise), because a page fault for each 4 KiB takes longer than the
    copy of its bytes.

    Args:
        size: Bytes, at or above 0.

    Raises:
        MemoryError: There is not enough memory.
    """
    if size < _MAPPED_BYTES or not _PRIVATE:
        return bytearray(size)
    try:
        mapped = mmap.mmap(-1, size, flags=_PRIVATE)
    except OSError:  # a process has a limited number of maps
        return bytearray(size)
    if _HUGE_PAGES is not None and size > 2 * _SMALL_PAGE_BYTES:
        with contextlib.suppress(OSError):  # a kernel without them
            mapped.madvise(_HUGE_PAGES, _SMALL_PAGE_BYTES)
    return memoryview(mapped)
