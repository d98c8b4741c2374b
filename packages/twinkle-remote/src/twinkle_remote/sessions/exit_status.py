"""The end of the program, and an exit status for a failure that is found at its end."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, cast

_INTERRUPTED = 130  # the convention of shells: 128 + the number of SIGINT


def ended_by_error() -> bool:
    """Whether an uncaught error ended the program; an error at an interactive prompt did not."""
    return hasattr(sys, "last_value") and not (hasattr(sys, "ps1") or sys.flags.interactive)


def exit_with(error: BaseException) -> None:
    """Print an error, and end the process with the error's exit status after all other functions of `atexit`.

    The interpreter ignores exceptions of such functions. After them it flushes the standard streams. The streams that
    are set here end the process then.
    """
    sys.excepthook(type(error), error, error.__traceback__)
    status = _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    sys.stdout, sys.stderr = cast("Any", _Last(sys.stdout, status)), cast("Any", _Last(sys.stderr, status))


class _Last:
    """A standard stream whose last flush ends the process."""

    closed = False

    def __init__(self, stream: Any, status: int) -> None:
        self._stream = stream
        self._status = status

    def flush(self) -> None:
        if not sys.is_finalizing():
            if self._stream is not None:
                self._stream.flush()
            return
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # a broken pipe, or a closed stream
                cast("_Last", stream)._stream.flush()
        os._exit(self._status)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
