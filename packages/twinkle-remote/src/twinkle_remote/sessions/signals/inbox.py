"""Values that other threads give to one that waits for them, with a limit."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """Values for one thread, in the order in which they were put.

    A `SimpleQueue` may wait for ever where a signal arrives near the end of its limit, and a `Queue` stops for ever if
    the garbage collector puts something while its thread holds the queue's lock.
    """

    def __init__(self) -> None:
        self._values: deque[T] = deque()
        self._given = threading.Lock()  # free when there may be values
        self._given.acquire()

    def put(self, value: T) -> None:
        """Give a value; from any thread, also from a finalizer."""
        self._values.append(value)
        with suppress(RuntimeError):  # it is free already
            self._given.release()

    def take(self, seconds: float) -> list[T]:
        """All values that are there, after a wait for the first; none at its end, and now and then before it.

        Args:
            seconds: The longest wait.
        """
        if not self._values:
            self._given.acquire(timeout=seconds)
        found = []
        while self._values:
            found.append(self._values.popleft())
        return found
