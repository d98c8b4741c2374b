"""The inputs of one call: the replies of other calls that its tasks read, waited for and planned once for all tasks.

The first failure among them is known at once, and ends every task of the call, while others still run.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from twinkle_remote.protocol.backend import Reply
    from twinkle_remote.protocol.messages import Outcome, Task
    from twinkle_remote.tables.transfers import TaskTransfer, TransferPlan


class InputReplies:
    """The replies from which one call's tasks read their lazy arguments; the same object for all tasks of a call.

    It is true where there are any.

    Args:
        replies: The replies that are read.
        watched: Further replies of the same producer calls, from ranks whose outcomes are not read.
        plan: With the outcomes, it says what each task reads; None without replies.

    Attributes:
        replies: As given.
        watched: As given.
        plan: As given.
    """

    def __init__(
        self, replies: Iterable[Reply] = (), watched: Iterable[Reply] = (), plan: TransferPlan | None = None
    ) -> None:
        self.replies, self.watched = tuple(replies), tuple(watched)
        self.plan = plan
        self._planned: Sequence[TaskTransfer] | None = None
        self._left = len(self.replies)
        self._ready: Future[Outcome | None] = Future()
        self._lock = threading.Lock()
        for reply in self.watched:
            reply.add_done_callback(partial(self._arrived, count=0))
        for reply in self.replies:
            reply.add_done_callback(partial(self._arrived, count=1))

    def __bool__(self) -> bool:
        return bool(self.replies)

    def is_ready(self) -> bool:
        """Whether all inputs are there, or one has failed."""
        return self._ready.done()

    def when_ready(self, notify: Callable[[], None]) -> None:
        """Call a function once when all inputs are there or one has failed, in any thread; at once if that is so."""
        self._ready.add_done_callback(lambda _: notify())

    def of_task(self, task: Task) -> tuple[Sequence[Outcome], TaskTransfer | None]:
        """Wait for all inputs or for the first failure.

        Args:
            task: One of the call's tasks.

        Returns:
            The failed outcome, for the worker; and what the task reads. Both are empty without inputs.
        """
        if not self.replies:
            return (), None
        failed = self._ready.result()
        if failed is not None:
            return (failed,), None
        with self._lock:
            if self._planned is None:
                assert self.plan is not None
                outcomes = [reply.result() for reply in self.replies]
                self._planned = self.plan.transfers(outcomes)
        return (), self._planned[task.place]

    def give_up(self, outcome: Outcome) -> None:
        """End the wait with a failure: the call was cancelled."""
        self._end(outcome)

    def _arrived(self, reply: Future[Outcome], *, count: int) -> None:
        outcome = reply.result()
        if outcome.failure is not None:
            self._end(outcome)
        with self._lock:
            self._left -= count
            done = count > 0 and self._left == 0
        if done:
            self._end(None)

    def _end(self, failed: Outcome | None) -> None:
        with suppress(InvalidStateError):  # a failure came first
            self._ready.set_result(failed)
