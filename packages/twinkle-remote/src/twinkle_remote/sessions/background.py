"""Small pieces of work that the garbage collector leaves: threads do them, and the end of a session waits for them."""

from __future__ import annotations

import threading
import weakref
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Protocol

from twinkle_remote.errors import TwinkleError

if TYPE_CHECKING:
    from collections.abc import Callable

_PATIENCE_SECONDS = 5.0
_open: weakref.WeakSet[Closable] = weakref.WeakSet()
_at_work: set[threading.Thread] = set()


class Closable(Protocol):
    """What a normal end of a session closes."""

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


def in_background(work: Callable[[], object]) -> None:
    """Run something on a thread of its own; an error of twinkle is dropped, as the session's end tells of calls."""

    def serve() -> None:
        try:
            with suppress(TwinkleError):
                work()
        finally:
            _at_work.discard(thread)

    thread = threading.Thread(target=copy_context().run, args=(serve,), name="twinkle-background", daemon=True)
    _at_work.add(thread)
    try:
        thread.start()
    except RuntimeError:  # the interpreter ends
        _at_work.discard(thread)


def wait_for_background(seconds: float) -> None:
    """Wait until what was begun is done.

    Args:
        seconds: At or above 0, for each.
    """
    for thread in tuple(_at_work):
        if thread is not threading.current_thread() and thread.ident is not None:
            thread.join(seconds)
