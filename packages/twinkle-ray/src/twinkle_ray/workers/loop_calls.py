"""The part of a rank's actor for tasks of the event loop: started in their turn, answered later, cancelled, located.

Ray runs the methods of the group "control" on threads of their own, while tasks run on the main thread.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import ray

from twinkle_ray.forkserver.forked import Asker
from twinkle_ray.objects.wire import UNREAD, outcome_from_wire, outcome_to_wire, task_from_wire

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_ray.objects.wire import Wire
    from twinkle_ray.replies.loop_replies import OutcomeWire
    from twinkle_remote import CallRecord
    from twinkle_remote.backends.support import Worker
    from twinkle_remote.protocol import HandedShare, Outcome, WorkerInfo

CONTROL = "control"
CONTROL_THREADS = 3  # one of them for `alive`
_LOOK_SECONDS = 1.0  # between two looks whether the raylet is there


class LoopCalls:
    """Tasks of the event loop.

    Attributes:
        worker: Runs the tasks, once it has a rank.
        info: Its group, rank and node.
        places: Coordinate of each of its components.
        waiters: The waiters of the callers that it has met.
    """

    worker: Worker | None
    info: WorkerInfo
    places: dict[str, Mapping[str, int]]
    waiters: dict[str, Any]

    def __init__(self) -> None:
        self.waiters = {}

    def meet(self, caller: str, waiter: Any) -> None:
        """Take the input waiter of a process, to which the outcomes of its tasks are delivered."""
        self.waiters[caller] = waiter

    def start_on_loop(self, wire: Wire, caller: str, key: str, *inputs: HandedShare | OutcomeWire) -> None:
        """Start a task on the event loop.

        Args:
            wire: The task.
            caller: The process whose input waiter takes the outcome.
            key: Id of the task.
            *inputs: Outcomes that its lazy arguments read; or what an input waiter has planned that it reads.
        """
        from twinkle_remote.protocol import HandedShare, Outcome

        waiter = self.waiters[caller]

        def answer(outcome: Outcome) -> None:
            with contextlib.suppress(ray.exceptions.RayError):  # the caller has ended
                waiter.deliver.remote(key, outcome_to_wire(outcome))

        task = None
        try:
            task = task_from_wire(wire)
            assert self.worker is not None
            given = next((source for source in inputs if isinstance(source, HandedShare)), None)
            outcomes = [outcome_from_wire(source) for source in inputs if not isinstance(source, HandedShare)]
            self.worker.start(task, outcomes, given, key=key, answer=answer)
        except BaseException as error:  # SystemExit would end the actor, and its traceback would be lost
            from twinkle_remote.backends.support import capture

            name = UNREAD if task is None else task.name
            label = self.info.label(None if task is None else self.places.get(task.instance))
            answer(Outcome(self.info.rank, failure=capture(error, label, self.info, name, live=False)))

    @ray.method(concurrency_group=CONTROL)
    def alive(self) -> None:
        """Wait while the raylet lives: the answer is an error as soon as this process has ended.

        A worker whose raylet has ended waits for its threads before it ends.
        """
        raylet = Asker()
        while raylet.lives(_LOOK_SECONDS):
            pass

    @ray.method(concurrency_group=CONTROL)
    def cancel(self, key: str) -> None:
        """Cancel a task of the event loop."""
        if self.worker is not None:
            self.worker.loop.cancel(key)

    @ray.method(concurrency_group=CONTROL)
    def own_records(self, since: float) -> Sequence[CallRecord]:
        """The metrics of the calls that this worker has made since then."""
        from twinkle_remote.backends.support import report_records

        return report_records(since)

    @ray.method(concurrency_group=CONTROL)
    def where(self, key: str) -> str | None:
        """Where a task of the event loop runs or waits; None if it has not begun or is done."""
        return None if self.worker is None else self.worker.loop.stack(key)
