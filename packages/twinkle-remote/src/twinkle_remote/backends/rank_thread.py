"""One rank as a thread with a queue of tasks, and the shared state of a backend's threads."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

from twinkle_remote.backends.draw_warnings import DrawWarnings
from twinkle_remote.backends.draws import Draws
from twinkle_remote.backends.thread_reply import ThreadReply, wait_for_any
from twinkle_remote.backends.turns import Turns
from twinkle_remote.failures.capture import capture
from twinkle_remote.protocol.failure import Failure
from twinkle_remote.protocol.messages import Outcome
from twinkle_remote.worker.generators import Generators
from twinkle_remote.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.backends.memory import Memory
    from twinkle_remote.protocol.failure import WorkerInfo
    from twinkle_remote.protocol.messages import Task


_Item = tuple[ThreadReply, "Task", "Sequence[ThreadReply]", "Sequence[ThreadReply]"]


class Shared:
    """The shared state of all threads of one backend.

    Args:
        seed: Seed of each rank's generators.
        patience: Seconds that a constructor waits for its turn.

    Attributes:
        turns: Turns of the threads with the process's generators.
        draws: Check of the methods for draws.
        at_work: Labels of the threads that run a task.
    """

    def __init__(self, seed: int, patience: float) -> None:
        self.seed = seed
        warnings = DrawWarnings()
        self.turns = Turns(warnings, patience)
        self.at_work: set[str] = set()
        self.draws = Draws(self.turns, warnings, self.at_work.copy)


class RankThread:
    """One thread and its queue of tasks."""

    def __init__(self, info: WorkerInfo, store: Memory, shared: Shared) -> None:
        self.info = info
        self._shared = shared
        self._label = info.label()
        self._worker = Worker(info, store, live=True)
        self._generators = Generators(shared.seed)
        self._tasks: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._at: ThreadReply | None = None
        self._closing = False
        self.thread = threading.Thread(target=self._serve, name=info.label(), daemon=True)
        self.thread.start()

    def submit(
        self, reply: ThreadReply, task: Task, inputs: Sequence[ThreadReply], watched: Sequence[ThreadReply]
    ) -> None:
        """Queue a task; the first failure among its inputs and the watched replies ends it."""
        self._tasks.put((reply, task, inputs, watched))

    def end(self) -> None:
        """Let the running task end, and answer the queued tasks without running them."""
        self._closing = True
        self._tasks.put(None)

    def give_up(self) -> None:
        """Answer the running task instead of the thread."""
        at = self._at
        if at is not None:
            at.complete(self._lost())

    def _serve(self) -> None:
        while (item := self._tasks.get()) is not None:
            reply, task, inputs, watched = item
            self._at = reply
            self._shared.at_work.add(self._label)
            reply.complete(self._lost() if self._closing else self._run(task, inputs, watched))
            self._shared.at_work.discard(self._label)
            self._at = None
            del item, reply, task, inputs, watched
        while not self._tasks.empty():  # submitted by another rank while this one was ending
            late = self._tasks.get()
            if late is not None:
                late[0].complete(self._lost())

    def _run(self, task: Task, inputs: Sequence[ThreadReply], watched: Sequence[ThreadReply]) -> Outcome:
        try:
            outcomes = _first_failure_or_all(inputs, watched)
            if task.kind == "create":
                with self._shared.turns.taken(self._generators, task.name):
                    return self._worker.run(task, outcomes)
            return self._shared.draws.watch(self._label, task.name, lambda: self._worker.run(task, outcomes))
        except BaseException as error:  # SystemExit ends a worker process, but here only the task
            failure = capture(error, self.info.label(), self.info, task.name, live=True)
            return Outcome(self.info.rank, failure=failure)

    def _lost(self) -> Outcome:
        label, node = self.info.label(), f"{self.info.node} pid {self.info.pid}"
        return Outcome(self.info.rank, failure=Failure(label, node, "Shutdown", "twinkle was shut down", died=True))


def _first_failure_or_all(inputs: Sequence[ThreadReply], watched: Sequence[ThreadReply]) -> Sequence[Outcome]:
    """The outcomes of all inputs; or, as soon as an input or a watched reply fails, only that outcome."""
    everyone = [*inputs, *watched]
    while pending := [given for given in everyone if given.outcome is None]:
        failed = [one.outcome for one in everyone if one.outcome is not None and one.outcome.failure is not None]
        if failed:
            return failed[:1]
        if all(given.outcome is not None for given in inputs):
            break
        wait_for_any(pending, None)
    return [given.outcome for given in inputs if given.outcome is not None]
