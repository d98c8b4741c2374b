"""The thread of a process that sends all of its tasks, in the order in which the calls were made.

A call is one step of the interpreter for its caller: Ctrl-C leaves it sent to all ranks, or to none. Calls whose inputs
are not there wait here, each rank's later tasks behind them.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_ray.workers.replies import RayReply
    from twinkle_remote.protocol import InputReplies, Task

_log = logging.getLogger("twinkle.ray")


class TaskQueue:
    """One daemon thread, which begins with the first call.

    Args:
        name: Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, function: Callable[[], object]) -> None:
        """Run a function on the thread, after the earlier ones; it does not wait for a worker."""
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                    self._thread.start()
        self._work.put(function)

    def _serve(self) -> None:
        while True:
            try:
                self._work.get()()
            except Exception:  # the thread sends for all calls
                _log.exception("a task was not sent")


class Waiting:
    """A task in the queue of its rank.

    Args:
        reply: Its reply.
        task: The task.
        wire: Its wire form.
        inputs: The replies that it reads.
    """

    __slots__ = ("inputs", "reply", "task", "wire")

    def __init__(self, reply: RayReply, task: Task, wire: Any, inputs: InputReplies) -> None:
        self.reply, self.task, self.wire, self.inputs = reply, task, wire, inputs


class RankQueues:
    """The tasks of each rank of one group that wait for inputs, or behind one that does; on the thread alone.

    Args:
        queue: The thread.
        send: Sends a task whose inputs are there.
    """

    def __init__(self, queue: TaskQueue, send: Callable[[Waiting], None]) -> None:
        self._queue, self._send = queue, send
        self._of_rank: dict[int, deque[Waiting]] = {}

    def add(self, items: Sequence[Waiting]) -> None:
        """Send the tasks of one call, or queue them."""
        inputs = items[0].inputs
        if inputs and not inputs.is_ready():
            inputs.when_ready(partial(self._queue.put, partial(self._advance, [one.reply.rank for one in items])))
        for item in items:
            waiting = self._of_rank.setdefault(item.reply.rank, deque())
            waiting.append(item)
            self._advance([item.reply.rank])

    def withdraw(self, reply: RayReply) -> bool:
        """Take a task out of its queue; False if it was sent."""
        waiting = self._of_rank.get(reply.rank, deque())
        found = next((item for item in waiting if item.reply is reply), None)
        if found is None:
            return False
        waiting.remove(found)
        self._advance([reply.rank])
        return True

    def waits(self, reply: RayReply) -> bool:
        """Whether a task waits here; in any thread."""
        return any(item.reply is reply for item in tuple(self._of_rank.get(reply.rank, ())))

    def _advance(self, ranks: Sequence[int]) -> None:
        for rank in ranks:
            waiting = self._of_rank[rank]
            while waiting and (not waiting[0].inputs or waiting[0].inputs.is_ready()):
                self._send(waiting.popleft())
