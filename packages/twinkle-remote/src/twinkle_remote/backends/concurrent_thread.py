"""A thread of a rank for its concurrent tasks; another one runs those in turn."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class ConcurrentThread:
    """Runs functions one after the other; its thread begins with the first one.

    Args:
        name: Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[Callable[[], None] | None] | None = None

    def submit(self, function: Callable[[], None]) -> None:
        """Run a function, which must not raise, after the earlier ones."""
        with self._lock:
            if self._work is None:
                self._work = queue.SimpleQueue()
                threading.Thread(target=_serve, args=(self._work,), name=self._name, daemon=True).start()
            self._work.put(function)

    def end(self) -> None:
        """End the thread after the functions that it was given."""
        if self._work is not None:
            self._work.put(None)


def _serve(work: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (function := work.get()) is not None:
        function()
