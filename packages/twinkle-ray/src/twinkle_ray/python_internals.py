"""Changes of this package in Python itself, each with the reason.

`tests/ray/test_python_internals.py` fails when Python changes one of them.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_FIXED: Final = 0x10  # MAP_FIXED, on every architecture of Linux that torch is built for


@contextmanager
def environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables of this process meanwhile, or unset those of None: Ray and NCCL take no others.

    Ray starts the processes of a node with the environment of this one, and NCCL reads its own.
    """
    before = {name: os.environ.get(name) for name in values}
    _set(values)
    try:
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextmanager
def interpreter(path: Path) -> Iterator[None]:
    """Start children with another interpreter meanwhile: Ray starts the workers of a node with `sys.executable`."""
    before, sys.executable = sys.executable, str(path)
    try:
        yield
    finally:
        sys.executable = before


def collected_objects() -> list[object]:
    """Every object that the collector knows; it does not list what is frozen, so that is thawed meanwhile."""
    if not gc.get_freeze_count():
        return gc.get_objects()
    gc.unfreeze()
    found = gc.get_objects()
    gc.freeze()
    return found


def keep_for_good(value: object) -> None:
    """Keep a value until the process has ended: the interpreter frees what modules hold, and destructors run."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def skip_destructors() -> None:
    """End the process with its status right after the interpreter: the last handler of on_exit runs first.

    Destructors of static C++ objects run after every handler of `atexit`, and `os._exit` would skip those too.
    """
    libc = ctypes.CDLL(None)
    try:
        on_exit, now = libc.on_exit, libc._exit
    except AttributeError:  # not in every C library
        return
    on_exit.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    on_exit(ctypes.cast(now, ctypes.c_void_p), None)


def map_at(address: int, size: int, fd: int, offset: int) -> None:
    """Map a part of a file privately over memory of this process: Python's `mmap` lets the system choose where.

    Args:
        address: Begin of a page of a mapping that ends with all that is mapped over it.
        size: Bytes; the rest of the last page is mapped too.
        fd: The file.
        offset: Begin of a page of it.

    Raises:
        OSError: The system refuses it.
    """
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    flags = mmap.MAP_PRIVATE | _FIXED
    if function(address, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, offset) != address:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
