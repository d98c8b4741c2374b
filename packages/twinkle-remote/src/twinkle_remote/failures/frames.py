"""Finds the user's frames of a stack: errors show these, and hide the frames of these packages."""

from __future__ import annotations

import os
import sys
import traceback
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING

from twinkle_remote.context import caller
from twinkle_remote.protocol.failure import WorkerInfo

if TYPE_CHECKING:
    from types import FrameType, TracebackType

_MACHINERY = (
    "twinkle_remote",
    "twinkle_mesh",
    "twinkle_ray",
    "twinkle_data",
    "twinkle_http",
    "twinkle_engines",
    "twinkle",
)
_FOLDERS = tuple(f"{os.sep}{name}{os.sep}" for name in ("twinkle_remote", "twinkle_ray", "twinkle_http"))
_LIBRARY = os.path.dirname(os.__file__) + os.sep
_INSTALLED = f"{os.sep}site-packages{os.sep}"
_INNERMOST = 6  # frames of a stack that are shown
_WAITED_IN = ("ray", "urllib3")
_SUITE = os.path.join(_FOLDERS[0], "conformance") + os.sep


def is_machinery_file(name: str) -> bool:
    """Whether a file belongs to these packages, except for the conformance suite."""
    return any(folder in name for folder in _FOLDERS) and _SUITE not in name


def user_stack(frame: FrameType | None) -> str:
    """The innermost user frames of a worker's stack; without any, the frames of these packages."""
    stack = traceback.extract_stack(frame)
    own = [at for at in stack if not is_machinery_file(at.filename)]
    below = [i for i, at in enumerate(stack) if is_machinery_file(at.filename)]
    inside = [at for at in own if below and stack.index(at) > below[0]]
    if all(at.filename.startswith(_LIBRARY) and _INSTALLED not in at.filename for at in inside):
        inside = []  # these packages wait inside of Python's own modules
    return "".join(traceback.format_list((inside or stack)[-_INNERMOST:]))


class plain_interrupt:  # noqa: N801 - a context manager that reads as a noun; contextlib doubles its time
    """A block of a public function: Ctrl-C shows the program's frames and that function's, none further within.

    Where the program's own code runs within the block, such as a function that collects, all frames show.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if trace is not None and isinstance(error, KeyboardInterrupt) and _is_all_machinery(trace):
            trace.tb_next = None


def _is_all_machinery(trace: TracebackType | None) -> bool:
    """Whether all frames of a traceback are of these packages, or of what they wait in."""
    return all(_waits(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(trace))


def _waits(name: str) -> bool:
    installed = any(f"{_INSTALLED}{library}{os.sep}" in name for library in _WAITED_IN)
    compiled = any(name.startswith(f"python/{library}/") for library in _WAITED_IN)  # Cython's names are relative
    return is_machinery_file(name) or installed or compiled or (name.startswith(_LIBRARY) and _INSTALLED not in name)


_line: ContextVar[str] = ContextVar("twinkle_line", default="")


def calls_are_from(line: str) -> None:
    """Let the calls of this thread name a line, because the user's code did not start the thread.

    Args:
        line: File and line of the user's code.
    """
    _line.set(line)


class called_from:  # noqa: N801 - a context manager that reads as a verb; contextlib doubles its time
    """Run a block for a caller elsewhere, whose line is the driver's line.

    Args:
        line: File and line of that caller.
    """

    __slots__ = ("_line", "_token")

    def __init__(self, line: str) -> None:
        self._line = line

    def __enter__(self) -> None:
        self._token = _line.set(self._line)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _line.reset(self._token)


def driver_line() -> str:
    """File and line of the user's call: the innermost frame outside of these packages."""
    if line := _line.get():
        return line
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not _is_machinery(frame.f_globals.get("__name__", "")):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def call_line() -> str:
    """File and line of the user's call, and the worker that makes it."""
    here = caller()
    if here.group is None or here.rank is None:
        return driver_line()
    return f"{driver_line()} on {WorkerInfo(here.group, here.rank, here.world_size).label(here.coordinate)}"


@lru_cache(maxsize=1024)
def _is_machinery(module: str) -> bool:
    return module.partition(".")[0] in _MACHINERY and not module.startswith("twinkle_remote.conformance")
