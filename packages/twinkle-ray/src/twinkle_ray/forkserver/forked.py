"""Differences of a process that the fork server has made: its parent is not who asked for it, and torch is loaded."""

from __future__ import annotations

import os
import select
import sys
import threading

_OF_A_FORK: list[int] = []  # descriptor of the process that asked for this one
_never = threading.Event()


def set_asker(descriptor: int) -> None:
    """Note who asks for this process and its forks.

    Args:
        descriptor: From `os.pidfd_open`.
    """
    _OF_A_FORK[:] = [descriptor]


class Asker:
    """The process that asked for this one: its parent now, or who asked the fork server; of a worker, the raylet."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._poll = select.poll()
        for descriptor in _OF_A_FORK:
            self._poll.register(descriptor, select.POLLIN)

    def lives(self, seconds: float) -> bool:
        """Whether it lives.

        Args:
            seconds: How long to wait for its end.
        """
        if _OF_A_FORK:
            return not self._poll.poll(1000 * seconds)
        if seconds:
            _never.wait(seconds)
        return os.getppid() == self._parent


def take_threads() -> None:
    """Give torch the number of threads that Ray has set, and the threads: in a fork it was loaded before.

    Also without a number, as `twinkle_remote.sessions.forked.renew_threads_of_torch`.
    """
    torch, threads = sys.modules.get("torch"), os.environ.get("OMP_NUM_THREADS", "")
    if _OF_A_FORK and torch is not None:
        torch.set_num_threads(int(threads) if threads.isdecimal() else torch.get_num_threads())
