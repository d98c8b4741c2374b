"""The wait of a worker's task, in a file in memory that others of its node read while the worker is busy.

A request to the worker itself would come after the call that is waited for: Ray keeps a caller's requests in order.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import ray

from twinkle_remote.protocol import Wait, WaitedWorker, WorkerWaits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_ray.workers.processes import Process

_NAME = "twinkle-wait"
_AGENT_SECONDS = 2.0  # in which the agents of two nodes must answer
_LARGEST = 1 << 20  # bytes


class ShownWait:
    """The waits of this process, for others; the file is made for the first one."""

    def __init__(self) -> None:
        self._descriptor = -1
        self._lock = threading.Lock()

    def show(self, waits: Callable[[], WorkerWaits]) -> None:
        """Show the waits of this moment: the main thread and the event loop change them."""
        if sys.platform != "linux":
            return
        with self._lock:
            now = waits()
            nothing = now.turn is None and now.loop is None and not now.tasks
            if self._descriptor < 0 and nothing:
                return
            if self._descriptor < 0:
                self._descriptor = os.memfd_create(_NAME)
            text = b"" if nothing else json.dumps(now).encode()
            if len(text) < _LARGEST:
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, text, 0)


def read_waits(pids: Sequence[int]) -> list[WorkerWaits | None]:
    """The waits of the tasks of processes of this host; None where they wait for nothing, or that is not known."""
    return [_read(pid) for pid in pids]


def _read(pid: int) -> WorkerWaits | None:
    folder = f"/proc/{pid}/fd"
    with suppress(OSError, ValueError, TypeError):  # it is gone, or writes at this moment
        for descriptor in os.listdir(folder):
            path = f"{folder}/{descriptor}"
            with suppress(FileNotFoundError):  # closed since it was listed
                if _NAME not in os.readlink(path):
                    continue
                with open(path, "rb") as file:
                    turn, loop, tasks, ended = json.loads(file.read(_LARGEST))
                return WorkerWaits(_wait(turn), _wait(loop), {key: _wait(tasks[key]) for key in tasks}, tuple(ended))
    return None


def _wait(shown: Any) -> Wait | None:
    if shown is None:
        return None
    number, running, ways, can_raise = shown
    return Wait(number, running, tuple(tuple(WaitedWorker(*one) for one in way) for way in ways), can_raise)


def waits_of(processes: Sequence[Process], agent: Any) -> list[WorkerWaits | None]:
    """`read_waits` of processes on any nodes.

    Args:
        processes: On any nodes.
        agent: The agent of this node, which knows those of the others; None where there is one node.
    """
    here = ray.get_runtime_context().get_node_id()
    found: dict[Process, WorkerWaits | None] = {}
    for node in {process.node for process in processes}:
        there = [process for process in processes if process.node == node]
        pids = [process.pid for process in there]
        found.update(zip(there, read_waits(pids) if node == here else _on_node(node, pids, agent), strict=True))
    return [found[process] for process in processes]


def _on_node(node: str, pids: Sequence[int], agent: Any) -> Sequence[WorkerWaits | None]:
    if agent is not None:
        with suppress(ray.exceptions.RayError):  # lost, or slow: nothing is known
            (asked,) = ray.get(agent.ask_waits.remote(node, pids), timeout=_AGENT_SECONDS)
            waits: Sequence[WorkerWaits | None] = ray.get(asked, timeout=_AGENT_SECONDS)
            return waits
    return [None] * len(pids)
