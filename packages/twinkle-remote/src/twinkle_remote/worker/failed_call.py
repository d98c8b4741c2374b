"""A call that failed, as a file from which one process can build its component and make it again.

The file is a pickle: what it holds is code for the process that opens it.
"""

from __future__ import annotations

import os
import pickle
import stat
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twinkle_remote.errors import TwinkleError

if TYPE_CHECKING:
    from io import BufferedWriter

SUFFIX = ".failure"
MOST_BYTES = 1 << 28
_MAIN = "__main__"


@dataclass(frozen=True, slots=True)
class FailedCall:
    """A call of one rank. Its arguments are pickled once more, so that they are opened after the program's modules.

    Attributes:
        name: Class.method.
        method: Name of the method; None for the constructor itself.
        group: Group of the worker.
        rank: Its rank.
        world_size: Number of workers of the group.
        seed: The session's.
        main: Path of the program, for its definitions in `__main__`; empty if there is none.
        argv: Arguments of the program's command line.
        paths: Directories of the program's modules.
        type_name: Type of the error.
        message: Its text.
        trace: Its traceback on the worker.
        constructor: The pickled class, positional and keyword arguments of the constructor, and the mesh.
        on_loop: Whether the method is a coroutine.
        arguments: The pickled positional and keyword arguments of the call.
    """

    name: str
    method: str | None
    group: str
    rank: int
    world_size: int
    seed: int
    main: str
    argv: tuple[str, ...]
    paths: tuple[str, ...]
    type_name: str
    message: str
    trace: str
    constructor: bytes
    on_loop: bool
    arguments: bytes


class _ByName(pickle.Pickler):
    """Pickles classes and functions of the program itself by their names: a worker has them by value."""

    def reducer_override(self, value: Any) -> Any:
        """The reduction of a class or a function; the usual way for anything else."""
        if issubclass(type(value), type | _FUNCTION) and value.__module__ == _MAIN:
            return found_in_main, (value.__qualname__,)
        return NotImplemented


_FUNCTION = type(lambda: None)


class _Bounded:
    """A file in memory that refuses to grow beyond a limit."""

    def __init__(self, most: int) -> None:
        self._parts: list[bytes] = []
        self._left = most

    def write(self, part: Any) -> int:
        """Take a part.

        Raises:
            ValueError: It is over the limit.
        """
        data = bytes(part)
        self._left -= len(data)
        if self._left < 0:
            raise ValueError(f"its arguments take more than {MOST_BYTES >> 20} MiB")
        self._parts.append(data)
        return len(data)

    def value(self) -> bytes:
        """All that was written."""
        return b"".join(self._parts)


def found_in_main(qualname: str) -> Any:
    """The class or function of the program itself with this name."""
    value: Any = sys.modules[_MAIN]
    for name in qualname.split("."):
        value = getattr(value, name)
    return value


def pickled(value: object) -> bytes:
    """A pickle of at most `MOST_BYTES`.

    Raises:
        Exception: Whatever the value's own pickling raises; `ValueError` where it takes more.
    """
    file = _Bounded(MOST_BYTES)
    _ByName(file, protocol=5).dump(value)
    return file.value()


def write(call: FailedCall, file: BufferedWriter) -> None:
    """Write a call into a file."""
    pickle.dump(call, file, protocol=5)


def read(path: str | os.PathLike[str]) -> FailedCall:
    """Read a call from a file that nobody else can have written; this runs what the file holds.

    Raises:
        TwinkleError: Others can write the file, or it is none of this kind.
        OSError: It cannot be read.
    """
    with open(path, "rb") as file:
        found = os.fstat(file.fileno())
        if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise TwinkleError(
                f"{os.fspath(path)} belongs to somebody else, or others can write it, and what it holds is run: if you "
                "trust it, copy it and chmod 600 the copy"
            )
        try:
            call = pickle.load(file)
        except Exception as error:  # any bytes may raise anything
            raise TwinkleError(f"{os.fspath(path)} is no saved call: {type(error).__name__}: {error}") from None
    if not isinstance(call, FailedCall):
        raise TwinkleError(f"{os.fspath(path)} holds a {type(call).__name__}, and no saved call")
    return call
