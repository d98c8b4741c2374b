"""Finds the user's frames of a stack: errors show these, and hide the frames of these packages."""

from __future__ import annotations

import os
import sys
import traceback
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING

from twinkle_remote.context import current_worker
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
_OUTERMOST = 4


def is_machinery_file(name: str) -> bool:
    """Whether a file belongs to these packages."""
    return any(folder in name for folder in _FOLDERS)


def users_part(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback from the first frame of the program on, where a debugger stops; None if it has none."""
    while trace is not None and is_machinery_file(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def user_stack(frame: FrameType | None) -> str:
    """The two ends of the user's frames of a worker's stack; without any, those of these packages."""
    stack = traceback.extract_stack(frame)
    own = [at for at in stack if not is_machinery_file(at.filename)]
    below = [i for i, at in enumerate(stack) if is_machinery_file(at.filename)]
    inside = [at for at in own if below and stack.index(at) > below[0]]
    if all(at.filename.startswith(_LIBRARY) and _INSTALLED not in at.filename for at in inside):
        inside = []  # these packages wait inside of Python's own modules
    frames = inside or stack
    if (left_out := len(frames) - _OUTERMOST - _INNERMOST) <= 0:
        return "".join(traceback.format_list(frames))
    ends = traceback.format_list(frames[:_OUTERMOST]), traceback.format_list(frames[-_INNERMOST:])
    return "".join([*ends[0], f"  ... {left_out} frames ...\n", *ends[1]])


_line: ContextVar[str] = ContextVar("twinkle_line", default="")


def calls_are_from(line: str) -> None:
    """Let the calls of this thread name a line, because the user's code did not start the thread.

    Args:
        line: File and line of the user's code.
    """
    _line.set(line)


def named_elsewhere() -> bool:
    """Whether the calls of this thread name a line of a program that goes on elsewhere: a stream's thread, a server."""
    return bool(_line.get())


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
    here = current_worker()
    if here.group is None or here.rank is None:
        return driver_line()
    return f"{driver_line()} on {WorkerInfo(here.group, here.rank, here.world_size).label(here.coordinate)}"


@lru_cache(maxsize=1024)
def _is_machinery(module: str) -> bool:
    return module.partition(".")[0] in _MACHINERY
