"""Forked processes: the error of one that wants to use its parent's session, and torch's threads in one."""

from __future__ import annotations

import os
import sys

_pid = os.getpid()  # of the process whose torch has its threads


def forked_from(parent: int) -> str:
    """The error text for a forked process; says what to use.

    Args:
        parent: Process id of the owner of the session.
    """
    return (
        f"process {os.getpid()} was forked from process {parent}, whose session works in that process alone: make the "
        'calls there and hand over their values, or start this process by multiprocessing.get_context("spawn")'
    )


def renew_threads_of_torch() -> None:
    """In a forked process that has torch from its parent: give torch new threads, before several threads ask for them.

    torch makes them where it is first used after a fork. Of two threads that come there at once, such as autograd's and
    one that reads weights, the second finds none, and torch ends the process with "Invalid thread pool".
    """
    global _pid
    torch = sys.modules.get("torch")
    if _pid != os.getpid() and torch is not None:
        torch.set_num_threads(torch.get_num_threads())
        _pid = os.getpid()
