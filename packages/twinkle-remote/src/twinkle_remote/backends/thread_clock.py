"""The processor time of a thread."""

from __future__ import annotations

import time


class ThreadClock:
    """Processor time of a living thread, in seconds.

    Where the system does not count the time of a single thread, it is the wall clock: the thread counts as working.

    Args:
        thread: Identity of the thread.
    """

    def __init__(self, thread: int) -> None:
        self._thread = thread

    def read(self) -> float:
        """Seconds that the thread has worked."""
        clock = getattr(time, "pthread_getcpuclockid", None)
        return time.monotonic() if clock is None else time.clock_gettime(clock(self._thread))
