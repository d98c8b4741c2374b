"""Keeps a second thread out of a loader."""

from __future__ import annotations

import threading


class ThreadGuard:
    """Lets one thread at a time move a loader, and raises in a second one; a pickled copy is a new guard."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder = ""

    def __reduce__(self) -> tuple[type[ThreadGuard], tuple[()]]:
        return ThreadGuard, ()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                f"this loader is in use by thread {self._holder!r}: a loader has one position, so two threads at once "
                "would share its batches at random. Give each thread a loader of its own, or take batches in one "
                "thread and hand them on in a queue.Queue"
            )
        self._holder = threading.current_thread().name

    def __exit__(self, *_: object) -> None:
        self._lock.release()
