"""A call that failed, as a file (a pickle) from which one process can build its component and make it again."""

from __future__ import annotations

import io
import os
import pickle
import sys
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from twinkle_remote.context import WorkerContext, working_as
from twinkle_remote.errors import TwinkleError
from twinkle_remote.sessions.seeding import begin_session, seed_process
from twinkle_remote.sessions.session import active

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from twinkle_remote.protocol.messages import Failure, Task, WorkerInfo

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
    return file.getvalue()


class FailureSaver:
    """Saves the failed calls of a worker, if the session says where; it keeps each component's pickled constructor."""

    def __init__(self, info: WorkerInfo) -> None:
        self._info = info
        self.constructors: dict[str, bytes | Exception] = {}

    def constructs(self, task: Task, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep a constructor's arguments, before it can change them."""
        if _saving() is not None:
            try:
                self.constructors[task.instance] = _pickled((task.target, args, kwargs, task.mesh, task.seed))
            except Exception as error:  # whatever the pickling of an argument raises
                self.constructors[task.instance] = error

    def save(self, task: Task, failure: Failure, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Failure:
        """Save a call that failed; the failure then says where, or why it could not be saved."""
        session = _saving()
        if session is None or task.kind not in ("create", "method"):
            return failure
        try:
            constructor = self.constructors[task.instance]
            if isinstance(constructor, Exception):
                raise constructor
            method = None if task.kind == "create" else task.target
            arguments = b"" if method is None else _pickled((args, kwargs))
            error = (failure.type_name, failure.message)
            call = FailedCall(task.name, method, task.on_loop, self._info, session, *error, constructor, arguments)
            return replace(failure, note=f"run it again in one process: twinkle replay {_written(call)}")
        except Exception as error:  # an argument does not pickle, the disk is full: the call's own error counts
            return replace(failure, note=f"this call is not saved: {type(error).__name__}: {error}")


def _saving() -> SavedFailures | None:
    runtime = active()
    return None if runtime is None else runtime.defaults.saving


def _written(call: FailedCall) -> str:
    """The path of a new file, which the user alone can read."""
    folder = call.session.folder
    os.makedirs(folder, mode=0o700, exist_ok=True)
    shown = "".join(letter if letter.isalnum() or letter in "._" else "-" for letter in call.name)
    path = os.path.join(folder, f"{shown}-{call.worker.group}-{call.worker.rank}-{os.urandom(4).hex()}.failure")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        pickle.dump(call, file, protocol=5)
    return path


def replay(path: str | os.PathLike[str], tell: Callable[[FailedCall], object] = lambda call: None) -> Any:
    """Build the component of a saved call, and make the call; returns what it returns, raises what it raises.

    Only the constructor and this one call run. Changes by earlier calls are missing. So are process groups, the other
    ranks, and the results and components that the arguments name. The file is a pickle, and loading it can run code: do
    not use a file from a source that you do not trust.

    Args:
        path: A file that `initialize(..., save_failures=folder)` wrote.
        tell: Called with the saved call before it runs.

    Raises:
        TwinkleError: The file is no saved call.
        Exception: What the constructor or the method raises, or the program before its session.
    """
    try:
        call = pickle.loads(Path(path).read_bytes())
    except (pickle.UnpicklingError, EOFError, ValueError) as error:
        raise TwinkleError(f"{os.fspath(path)} is no saved call: {type(error).__name__}: {error}") from None
    if not isinstance(call, FailedCall):
        raise TwinkleError(f"{os.fspath(path)} holds a {type(call).__name__}, and no saved call")
    tell(call)
    sys.path.extend(each for each in call.session.paths if each not in sys.path)
    with _main_of(call):
        begin_session(call.session.seed)
        cls, args, kwargs, mesh, seed = pickle.loads(call.constructor)
        seed_process(seed)
        with working_as(WorkerContext(call.worker.group, call.worker.rank, call.worker.size, mesh)):
            built = cls(*args, **kwargs)
            if call.method is None or isinstance(getattr(cls, call.method), property):
                return built if call.method is None else getattr(built, call.method)
            args, kwargs = pickle.loads(call.arguments)
            made = getattr(built, call.method)(*args, **kwargs)
            if not call.on_loop:
                return made
            from asyncio import run  # half of the import time of this package

            return run(made)


_reading: ContextVar[bool] = ContextVar("twinkle_reading_definitions", default=False)


class DefinitionsEnd(BaseException):
    """A session would begin in a program that is read for what it defines."""


def end_definitions() -> None:
    """Raise `DefinitionsEnd` where a program is read for what it defines: a session would begin."""
    if _reading.get():
        raise DefinitionsEnd


@contextmanager
def _main_of(call: FailedCall) -> Iterator[None]:
    """A block in which `__main__` has what the call's program defines, as far as its session would begin."""
    path, here, command = call.session.main, sys.modules[_MAIN], sys.argv
    if not os.path.exists(path) or os.path.abspath(getattr(here, "__file__", None) or "") == path:
        yield
        return
    module = ModuleType("__mp_main__")  # as multiprocessing names it: a part for `__main__` does not run
    module.__file__ = path
    sys.modules[_MAIN] = sys.modules["__mp_main__"] = module
    sys.argv = [path, *call.session.argv]
    token = _reading.set(True)
    try:
        with suppress(DefinitionsEnd):  # the rest is the session
            exec(compile(Path(path).read_bytes(), path, "exec"), module.__dict__)
        _reading.reset(token)
        yield
    finally:
        sys.modules[_MAIN], sys.argv = here, command
