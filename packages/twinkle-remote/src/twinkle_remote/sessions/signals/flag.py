"""A flag that threads wait for while signals come."""

from __future__ import annotations

import threading
from contextlib import suppress


class Flag:
    """Is set once.

    A signal at any step of a wait leaves no lock taken. That of an `Event` may stay taken for ever, and the handler of
    a signal that sets the event which its own thread waits for may stop there.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._free = threading.Lock()  # free when it is set
        self._free.acquire()

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it; from any thread, also from the handler of a signal."""
        self._is_set = True
        with suppress(RuntimeError):  # it is free already
            self._free.release()

    def wait(self, seconds: float) -> bool:
        """Wait until it is set; whether it is.

        Args:
            seconds: The longest wait, at or above 0.
        """
        if not self._is_set and self._free.acquire(timeout=seconds):
            with suppress(RuntimeError):  # as above
                self._free.release()
        return self._is_set
