"""Small pieces of work that the garbage collector leaves: threads do them, and the end of a session waits for them."""

from __future__ import annotations

import weakref
from _thread import get_ident, start_new_thread
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Protocol

from twinkle_remote.errors import TwinkleError
from twinkle_remote.sessions.signals.flag import Flag

if TYPE_CHECKING:
    from collections.abc import Callable

_PATIENCE_SECONDS = 5.0
_open: weakref.WeakSet[Closable] = weakref.WeakSet()
_at_work: set[_Job] = set()


class Closable(Protocol):
    """An object that a normal end of a session closes."""

    def close(self) -> None:
        """Close it; nothing happens if it is closed."""


def close_at_end(value: Closable) -> None:
    """Close a value when the session ends normally, if it still exists."""
    _open.add(value)


def close_all() -> None:
    """Close what is open, and wait for what runs in the background."""
    wait_for_background(_PATIENCE_SECONDS)
    for value in tuple(_open):
        with suppress(TwinkleError):  # its calls keep their failures
            value.close()
    _open.clear()


class _Job:
    """Work on a thread of its own, which its caller does not even wait for to start.

    Args:
        work: It takes nothing. An error of twinkle is dropped, as the session's end reports calls.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        self._work, self._context = work, copy_context()
        self._thread = 0
        self._over = Flag()

    def run(self) -> None:
        """Do it."""
        self._thread = get_ident()
        try:
            with suppress(TwinkleError):  # its calls keep their failures
                self._context.run(self._work)
        finally:
            _at_work.discard(self)
            self._over.set()

    def wait(self, seconds: float) -> None:
        """Wait until it is done, except on its own thread."""
        if self._thread != get_ident():
            self._over.wait(seconds)


def in_background(work: Callable[[], object]) -> None:
    """Run something on a thread of its own; an error of twinkle is dropped, as the session's end reports calls."""
    job = _Job(work)
    _at_work.add(job)
    try:
        start_new_thread(job.run, ())
    except RuntimeError:  # the interpreter ends
        _at_work.discard(job)


def wait_for_background(seconds: float) -> None:
    """Wait until what was begun is done.

    Args:
        seconds: At or above 0, for each.
    """
    for job in tuple(_at_work):
        job.wait(seconds)
