"""Frees memory that is kept for the next use when there was none for a while."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

IDLE_SECONDS: Final = 30.0
_lock = threading.Lock()
_tasks: list[Callable[[], bool]] = []


def clean_while(task: Callable[[], bool]) -> None:
    """Call a function every few seconds on a thread, until it returns False; the caller has no lock that it takes."""
    with _lock:
        if task in _tasks:
            return
        _tasks.append(task)
        if len(_tasks) == 1:
            threading.Thread(target=_run, name="twinkle-janitor", daemon=True).start()


def _run() -> None:
    while True:
        time.sleep(IDLE_SECONDS / 8)
        with _lock:
            _tasks[:] = [task for task in _tasks if task()]
            if not _tasks:
                return


def _forget_parent() -> None:
    global _lock
    _lock = threading.Lock()
    _tasks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)
