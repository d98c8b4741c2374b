"""The inputs of one call on threads: all of its tasks wait for them together, and the first one plans for all."""

from __future__ import annotations

import threading
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import TYPE_CHECKING

from twinkle_remote.call.tables.hand_over import plan_hand_over
from twinkle_remote.protocol.waiting import WaitedWorker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.backends.thread_reply import ThreadReply
    from twinkle_remote.protocol.handed import HandedShare, HandOverPlan
    from twinkle_remote.protocol.messages import Outcome, Task


class SharedInputs:
    """The inputs of one call.

    Args:
        inputs: Replies that the tasks read; at least one.
        watched: Further replies whose failure ends the tasks as well.
        plan: With the outcomes, it says what each task reads; None if each worker plans.
    """

    def __init__(
        self, inputs: Sequence[ThreadReply], watched: Sequence[ThreadReply], plan: HandOverPlan | None
    ) -> None:
        self._inputs: Sequence[ThreadReply] = inputs
        self._plan = plan
        self._planned: Sequence[HandedShare] | None = None
        self._left = len(inputs)
        self._ready: Future[Outcome | None] = Future()
        self._lock = threading.Lock()
        for reply in watched:
            reply.when_done(self._watched)
        for reply in inputs:
            reply.when_done(self._arrived)

    def of_task(self, task: Task) -> tuple[Sequence[Outcome], HandedShare | None]:
        """Wait for all inputs or the first failure; return outcomes for the worker, and what the task reads of them."""
        failed = self._ready.result()
        if failed is not None:
            return (failed,), None
        with self._lock:
            if self._planned is None and self._plan is not None:
                self._planned = plan_hand_over(self._plan, self._outcomes())
        return ((), self._planned[task.place]) if self._planned is not None else (self._outcomes(), None)

    def waited_for(self) -> Sequence[WaitedWorker]:
        """The workers whose answers are missing."""
        return [WaitedWorker(one.at, one.rank, one.name, one.key) for one in self._inputs if not one.done() and one.at]

    def _outcomes(self) -> Sequence[Outcome]:
        return [reply.outcome for reply in self._inputs if reply.outcome is not None]

    def give_up(self, outcome: Outcome) -> None:
        """End the wait with a failure: the call was cancelled."""
        self._end(outcome)

    def _watched(self, outcome: Outcome) -> None:
        if outcome.failure is not None:
            self._end(outcome)

    def _arrived(self, outcome: Outcome) -> None:
        self._watched(outcome)
        with self._lock:
            self._left -= 1
            done = self._left == 0
        if done:
            self._end(None)

    def _end(self, failed: Outcome | None) -> None:
        with suppress(InvalidStateError):  # a failure came first
            self._ready.set_result(failed)
