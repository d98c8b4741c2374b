"""Coroutines on a worker: a request starts one in its turn, and its outcome is fetched later, with others.

The caller has one request for outcomes open at each worker where coroutines of its run. A worker keeps an outcome until
the caller says that it has it, so that a lost answer loses none.
"""

from __future__ import annotations

import threading
from collections import deque
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from ray import exceptions

if TYPE_CHECKING:
    from concurrent.futures import Future

    from twinkle_ray.workers.replies import OutcomeWire, RayReply
    from twinkle_ray.workers.task_queue import TaskQueue

_POLL_SECONDS = 20.0  # after which a worker answers without an outcome: the caller may have ended
_RETRY_SECONDS = 0.5
Numbered = tuple[int, str, "OutcomeWire"]


class Outcomes:
    """The outcomes of coroutines of one caller, on the worker."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._kept: deque[Numbered] = deque()
        self._numbers = count(1)

    def add(self, key: str, wire: OutcomeWire) -> None:
        """Keep an outcome for the caller."""
        with self._changed:
            self._kept.append((next(self._numbers), key, wire))
            self._changed.notify_all()

    def after(self, number: int) -> list[Numbered]:
        """Wait for outcomes; without one the answer is empty after some seconds.

        Args:
            number: The caller has those up to this one, which are forgotten.
        """
        with self._changed:
            while self._kept and self._kept[0][0] <= number:
                self._kept.popleft()
            self._changed.wait_for(lambda: self._kept, _POLL_SECONDS)
            return list(self._kept)


class LoopCalls:
    """The coroutines of this process on one worker; on the thread of the task queue alone.

    Args:
        actor: The worker.
        caller: Id of this process.
        queue: The thread.
    """

    def __init__(self, actor: Any, caller: str, queue: TaskQueue) -> None:
        self._actor, self._caller, self._queue = actor, caller, queue
        self._pending: dict[str, RayReply] = {}
        self._received = 0
        self._polls = False

    def start(self, reply: RayReply, wire: Any, reads: Any) -> None:
        """Start a coroutine."""
        self._pending[reply.key] = reply
        started = self._actor.start_on_loop.remote(wire, self._caller, reply.key, *reads)
        started.future().add_done_callback(partial(self._started, reply))
        self._poll()

    def _started(self, reply: RayReply, answered: Future[None]) -> None:
        error = answered.exception()
        if error is not None:
            reply.lose(error)

    def _poll(self) -> None:
        if self._pending and not self._polls:
            self._polls = True
            asked = self._actor.outcomes.remote(self._caller, self._received)
            asked.future().add_done_callback(lambda answered: self._queue.put(partial(self._take, answered)))

    def _take(self, answered: Future[list[Numbered]]) -> None:
        self._polls = False
        error = answered.exception()
        if isinstance(error, exceptions.ActorUnavailableError):  # the connection broke; it may be there again
            again = threading.Timer(_RETRY_SECONDS, self._queue.put, [self._poll])
            again.daemon = True
            again.start()
            return
        if error is not None:
            for reply in self._pending.values():
                reply.lose(error)
            self._pending.clear()
            return
        for number, key, wire in answered.result():
            self._received = number
            if key in self._pending:
                self._pending.pop(key).take(wire)
        for key in [key for key, reply in self._pending.items() if reply.done()]:
            del self._pending[key]
        self._poll()
