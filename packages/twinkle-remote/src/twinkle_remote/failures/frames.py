"""Which frames of a stack are the user's: errors show these, and not the packages' own."""

from __future__ import annotations

import os
import sys
import traceback
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

_MACHINERY = ("twinkle_remote", "twinkle_mesh", "twinkle_ray", "twinkle_data", "twinkle")
_FOLDERS = tuple(f"{os.sep}{name}{os.sep}" for name in ("twinkle_remote", "twinkle_ray"))
_LIBRARY = os.path.dirname(os.__file__) + os.sep
_INSTALLED = f"{os.sep}site-packages{os.sep}"
_SUITE = os.path.join(_FOLDERS[0], "conformance") + os.sep


def is_machinery_file(name: str) -> bool:
    """Whether a file is of these packages, the conformance suite aside."""
    return any(folder in name for folder in _FOLDERS) and _SUITE not in name


def user_stack(frame: FrameType | None, limit: int = 6) -> str:
    """Where a worker's code is: the innermost frames that are the user's, or what the machinery does instead."""
    stack = traceback.extract_stack(frame)
    own = [at for at in stack if not is_machinery_file(at.filename)]
    below = [i for i, at in enumerate(stack) if is_machinery_file(at.filename)]
    inside = [at for at in own if below and stack.index(at) > below[0]]
    if all(at.filename.startswith(_LIBRARY) and _INSTALLED not in at.filename for at in inside):
        inside = []  # what the machinery waits in is Python's own
    return "".join(traceback.format_list((inside or stack)[-limit:]))


def driver_line() -> str:
    """File and line of the innermost caller outside of these packages: where the user made the call."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not _is_machinery(frame.f_globals.get("__name__", "")):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


@lru_cache(maxsize=1024)
def _is_machinery(module: str) -> bool:
    return module.partition(".")[0] in _MACHINERY and not module.startswith("twinkle_remote.conformance")
