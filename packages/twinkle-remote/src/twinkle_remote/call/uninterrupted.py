"""Lets no Ctrl-C stop a function halfway: Python interrupts the main thread alone, so another thread runs it."""

from __future__ import annotations

import os
import threading
from contextvars import copy_context
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from twinkle_remote.sessions.signals.flag import Flag

if TYPE_CHECKING:
    from collections.abc import Callable

R = TypeVar("R")
_SLICE_SECONDS = 0.5  # a signal that comes just before a wait is not seen before its end


class _SentWork:
    """A function to run, and its end.

    Args:
        function: It takes nothing.

    Attributes:
        over: It has run.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._context = copy_context()
        self._value: Any = None
        self._error: BaseException | None = None
        self.over = Flag()

    def run(self) -> None:
        """Run it."""
        try:
            self._value = self._context.run(self._function)
        except BaseException as error:  # it is raised to the thread that waits
            self._error = error
        self.over.set()

    def outcome(self) -> Any:
        """Return its value, or raise its error."""
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # its traceback has this frame
        return self._value


class _Helper:
    """The thread, and the process of which it is."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.work: SimpleQueue[_SentWork] = SimpleQueue()
        threading.Thread(target=self._serve, name="twinkle-uninterrupted", daemon=True).start()

    def _serve(self) -> None:
        while True:
            self.work.get().run()


_helper: _Helper | None = None


def uninterrupted(function: Callable[[], R]) -> R:
    """Run a short function to its end; Ctrl-C that comes meanwhile is raised after that.

    A second Ctrl-C is raised at once, in case that the function waits for something.
    """
    global _helper
    if threading.current_thread() is not threading.main_thread():
        return function()
    if _helper is None or _helper.process != os.getpid():
        _helper = _Helper()
    work = _SentWork(function)
    try:
        _helper.work.put(work)
        _wait(work)
    except KeyboardInterrupt:
        _wait(work)
        raise
    value: R = work.outcome()
    return value


def _wait(work: _SentWork) -> None:
    while not work.over.wait(_SLICE_SECONDS):
        pass
