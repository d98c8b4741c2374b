"""The reply of a worker of Ray.

Ray's own thread takes an answer in. What became of a lost worker is found out on another thread, which may ask it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from twinkle_ray.objects.wire import UNREAD, outcome_from_wire
from twinkle_ray.ray_internals import when_answered
from twinkle_ray.workers.task_queue import TaskQueue
from twinkle_remote.protocol import Reply

if TYPE_CHECKING:
    import ray

    from twinkle_ray.workers.group import RayGroup
    from twinkle_remote.protocol import Task

OutcomeWire = bytes | tuple[Any, ...]
_losses = TaskQueue("twinkle-lost-replies")


class RayReply(Reply):
    """The answer of one worker.

    Args:
        group: Its group.
        rank: Its rank.
        task: The task.
        sent: Bytes that are sent to the worker.

    Attributes:
        ref: The answer to its request; None until it is sent.
        key: Id of a task of the event loop; empty for any other.
        instance: Id of the component.
        name: Class.method.
        died_in: The method during which the rank was lost before this call; None if it was not.
    """

    def __init__(self, group: RayGroup, rank: int, task: Task, sent: int, key: str) -> None:
        super().__init__(rank, sent)
        self._group = group
        self.ref: ray.ObjectRef[Any] | None = None
        self.key, self.instance, self.name = key, task.instance, task.name
        self.died_in = group.deaths.get(rank)

    def expect(self, ref: ray.ObjectRef[Any]) -> None:
        """Take the answer to its request when it is there."""
        self.ref = ref
        when_answered(ref, self._answered)

    def _answered(self, answer: OutcomeWire | Exception) -> None:
        """Take the answer, in a thread of Ray."""
        if isinstance(answer, Exception):
            self.lose(answer)
        else:
            self.take(answer)

    def take(self, wire: OutcomeWire) -> None:
        """Take the outcome that the worker has sent."""
        try:
            outcome = outcome_from_wire(wire)
        except Exception as error:  # nobody else would answer
            self.lose(error)
            return
        if outcome.failure is not None and outcome.failure.method == UNREAD:
            message = f"its arguments were not read: {outcome.failure.message}"
            outcome.failure = replace(outcome.failure, method=self.name, message=message)
        if self.died_in is not None:  # it is there again: its node's link was down
            self._group.deaths.pop(self.rank, None)
        self.answer(outcome)

    def lose(self, error: BaseException) -> None:
        """Answer for a worker that does not, with an error of Ray's."""
        _losses.put(lambda: self.answer(self._group.lost(self, error)))
