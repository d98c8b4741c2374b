"""A worker's thread that fetches tasks from a caller's input waiter, and runs them while the main thread runs others.

Ray gives an actor whose main thread is busy no other work, whatever its concurrency groups are.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import ray

from twinkle_ray.forkserver.forked import Asker

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinkle_ray.objects.wire import Wire
    from twinkle_ray.replies.loop_replies import OutcomeWire

_ASK_SECONDS = 2.0  # a worker whose raylet has ended waits for its threads
_LATE_SECONDS = 5.0


class ConcurrentTasks:
    """The tasks of one caller.

    Args:
        waiter: The input waiter of the caller.
        worker: Id of this worker there.
        run: Runs a task, and returns its answer; it does not raise.
    """

    def __init__(self, waiter: Any, worker: str, run: Callable[[Wire], OutcomeWire]) -> None:
        self._waiter, self._worker, self._run = waiter, worker, run

    def start(self) -> None:
        """Begin; the thread ends with the caller."""
        threading.Thread(target=self._serve, name="twinkle-concurrent", daemon=True).start()

    def _serve(self) -> None:
        raylet = Asker()
        while raylet.lives(0):
            try:
                asked = self._waiter.next_task.remote(self._worker, _ASK_SECONDS)
                found = ray.get(asked, timeout=_ASK_SECONDS + _LATE_SECONDS)
                if found is not None:
                    key, wire = found
                    self._waiter.deliver.remote(key, self._run(wire))
            except ray.exceptions.GetTimeoutError:
                continue
            except ray.exceptions.RayError:  # the caller has ended
                return
