"""Lines that workers print, for those who pass them on: a backend reports each, and a server's clients may see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    Listener = Callable[[str, bool], None]

_listeners: list[Listener] = []


def worker_line(line: str, is_error: bool) -> None:
    """Show a line that a worker has printed, with its label; from any thread.

    Args:
        line: The line, without control characters.
        is_error: It is from standard error.
    """
    for listener in tuple(_listeners):
        listener(line, is_error)


def listen(listener: Listener) -> Callable[[], None]:
    """Get the lines of workers from now on; returns what ends it. A listener must not raise."""
    _listeners.append(listener)
    return lambda: _listeners.remove(listener) if listener in _listeners else None
