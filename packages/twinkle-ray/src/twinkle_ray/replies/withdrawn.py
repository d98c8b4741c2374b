"""The tasks that callers have cancelled before their worker began them, by Ray's ids, in a file in its memory.

Callers write there while the worker is busy. Ray's own cancelling leaves a gap in the order of a caller's requests, for
which the actor waits half a minute.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import ray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_ray.workers.processes import Process

_NAME = "twinkle-withdrawn"


class Withdrawn:
    """The cancelled tasks of this process."""

    def __init__(self) -> None:
        self._descriptor = os.memfd_create(_NAME) if sys.platform == "linux" else -1

    def has(self, task: str | None) -> bool:
        """Whether a task is not to begin."""
        if self._descriptor < 0 or task is None:
            return False
        size = os.fstat(self._descriptor).st_size
        return size > 0 and task.encode() in os.pread(self._descriptor, size, 0).split()


def write_withdrawn(asked: Sequence[tuple[int, str]]) -> None:
    """Have processes of this host not begin tasks, each given as a process id and Ray's id of the task."""
    for pid, task in asked:
        folder = f"/proc/{pid}/fd"
        with suppress(OSError):  # it is gone
            for descriptor in os.listdir(folder):
                with suppress(FileNotFoundError):  # closed since it was listed
                    if _NAME in os.readlink(f"{folder}/{descriptor}"):
                        with open(f"{folder}/{descriptor}", "ab", buffering=0) as file:
                            file.write(task.encode() + b"\n")
                        break


def withdraw(tasks: Sequence[tuple[Process, str]], agent: Any) -> None:
    """`write_withdrawn` for processes of any nodes; returns at once.

    Args:
        tasks: Processes, and Ray's ids of their tasks.
        agent: The agent of this node, which knows those of the others; None where there is one node.
    """
    here = ray.get_runtime_context().get_node_id()
    by_node: dict[str, list[tuple[int, str]]] = {}
    for process, task in tasks:
        by_node.setdefault(process.node, []).append((process.pid, task))
    for node, asked in by_node.items():
        if node == here:
            write_withdrawn(asked)
        elif agent is not None:
            agent.withdraw.remote(node, asked)
