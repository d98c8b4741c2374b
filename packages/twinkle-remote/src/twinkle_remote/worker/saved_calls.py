"""A call that failed, as a file (a pickle) from which one process can build its component and make it again."""

from __future__ import annotations

import io
import os
import pickle
import sys
from dataclasses import dataclass
from operator import attrgetter
from types import FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twinkle_remote.protocol.messages import Failure, Task, WorkerInfo

_SUFFIX = ".failure"
_MOST_FILES = 64  # in one folder
_MOST_BYTES = 1 << 28
_MAIN = "__main__"


@dataclass(frozen=True, slots=True)
class SavedFailures:
    """Where workers save calls that fail, and what a process needs to run them again.

    Attributes:
        folder: Absolute path, on each worker's node.
        seed: The session's.
        main: Path of the program; empty where it has none.
        argv: Arguments of its command line.
        paths: Directories of the program's modules.
    """

    folder: str
    seed: int
    main: str
    argv: tuple[str, ...]
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FailedCall:
    """A call of one rank. Its arguments are pickled once more, so that they are opened after the program's modules.

    Attributes:
        name: Class.method.
        method: Name of the method; None for the constructor itself.
        on_loop: Whether the method is a coroutine.
        worker: The worker.
        session: The session's seed, and the program's path, arguments and directories of modules.
        type_name: Type of the error.
        message: Its text.
        constructor: The pickled class, positional and keyword arguments of the constructor, mesh and seed.
        arguments: The pickled positional and keyword arguments of the call.
    """

    name: str
    method: str | None
    on_loop: bool
    worker: WorkerInfo
    session: SavedFailures
    type_name: str
    message: str
    constructor: bytes
    arguments: bytes


class _ByName(pickle.Pickler):
    """Pickles classes and functions of the program itself by their names: a worker may have them by value."""

    def reducer_override(self, value: Any) -> Any:
        """The reduction of a class or a function; the usual way for anything else."""
        if issubclass(type(value), type | FunctionType) and value.__module__ == _MAIN:
            return found_in_main, (value.__qualname__,)
        return NotImplemented


def found_in_main(qualname: str) -> Any:
    """The class or function of the program itself with this name."""
    return attrgetter(qualname)(sys.modules[_MAIN])


def _pickled(value: object) -> bytes:
    file = io.BytesIO()
    _ByName(file, protocol=5).dump(value)
    if file.tell() > _MOST_BYTES:
        raise ValueError(f"its arguments take more than {_MOST_BYTES >> 20} MiB")
    return file.getvalue()


class FailureSaver:
    """Saves the failed calls of a worker; it keeps the pickled constructor of each component until then."""

    def __init__(self, info: WorkerInfo) -> None:
        self._info = info
        self.constructors: dict[str, bytes | Exception] = {}

    def constructs(self, task: Task, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep a constructor's arguments, before it can change them."""
        try:
            self.constructors[task.instance] = _pickled((task.target, args, kwargs, task.mesh, task.seed))
        except Exception as error:  # whatever the pickling of an argument raises
            self.constructors[task.instance] = error

    def save(
        self, session: SavedFailures, task: Task, failure: Failure, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> str:
        """Save a call that failed; returns where, or why it could not be saved, for the error's text."""
        try:
            constructor = self.constructors[task.instance]
            if isinstance(constructor, Exception):
                raise constructor
            method = None if task.kind == "create" else task.target
            arguments = b"" if method is None else _pickled((args, kwargs))
            error = (failure.type_name, failure.message)
            call = FailedCall(task.name, method, task.on_loop, self._info, session, *error, constructor, arguments)
            return f"run it again in one process: twinkle replay {_written(call)}"
        except Exception as error:  # an argument does not pickle, the disk is full: the call's own error counts
            return f"this call is not saved: {type(error).__name__}: {error}"


def _written(call: FailedCall) -> str:
    """The path of a new file, which the user alone can read."""
    folder = call.session.folder
    os.makedirs(folder, mode=0o700, exist_ok=True)
    held = sum(name.endswith(_SUFFIX) for name in os.listdir(folder))
    if held >= _MOST_FILES:
        raise OSError(f"{folder} has {held} saved calls; remove some")
    shown = "".join(letter if letter.isalnum() or letter in "._" else "-" for letter in call.name)
    path = os.path.join(folder, f"{shown}-{call.worker.group}-{call.worker.rank}-{os.urandom(4).hex()}{_SUFFIX}")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        pickle.dump(call, file, protocol=5)
    return path
