"""One rank as a thread with a queue of tasks, and the shared state of a backend's threads."""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING

from twinkle_remote.backends.concurrent_thread import ConcurrentThread
from twinkle_remote.backends.rng_use import RngUse
from twinkle_remote.backends.rng_warnings import RngWarnings
from twinkle_remote.backends.turns import Turns
from twinkle_remote.context import WorkerContext, working_as
from twinkle_remote.errors import BEFORE_IT_BEGAN, CallCancelledError
from twinkle_remote.failures.capture import capture
from twinkle_remote.protocol.failure import Failure
from twinkle_remote.protocol.messages import Outcome
from twinkle_remote.random_state import RandomState
from twinkle_remote.running import wait_of
from twinkle_remote.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.backends.memory import Memory
    from twinkle_remote.backends.shared_inputs import SharedInputs
    from twinkle_remote.backends.thread_reply import ThreadReply
    from twinkle_remote.protocol.failure import WorkerInfo
    from twinkle_remote.protocol.handed import HandedShare
    from twinkle_remote.protocol.messages import Task


_Item = tuple["ThreadReply", "Task", "SharedInputs | None"]


class Shared:
    """The shared state of all threads of one backend.

    Args:
        seed: Seed of each rank's generators.
        patience: Seconds that a constructor waits for its turn.

    Attributes:
        turns: Turns of the threads with the process's generators.
        rng_use: Watches which methods use the shared generators.
        at_work: Labels of the threads that run a task.
    """

    def __init__(self, seed: int, patience: float) -> None:
        self.seed = seed
        warnings = RngWarnings()
        self.turns = Turns(warnings, patience)
        self.at_work: set[str] = set()
        self.rng_use = RngUse(self.turns, warnings, self.at_work.copy)


class RankThread:
    """One thread and its queue of tasks."""

    def __init__(self, info: WorkerInfo, store: Memory, shared: Shared) -> None:
        self.info = info
        self._shared = shared
        self._label = info.label()
        self.worker = Worker(info, store, live=True)
        self._on_loop: set[ThreadReply] = set()
        self._generators = RandomState(shared.seed)
        self.queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._at: ThreadReply | None = None
        self._waiting_for: SharedInputs | None = None
        self._closing = False
        self._concurrent = ConcurrentThread(f"{info.label()} concurrent")
        self.thread = threading.Thread(target=self._serve, name=info.label(), daemon=True)
        self.thread.start()

    def submit(self, reply: ThreadReply, task: Task, inputs: SharedInputs | None) -> None:
        """Queue a task, which begins when its inputs are there; None if it has none."""
        self.queue.put((reply, task, inputs))

    def submit_concurrent(self, reply: ThreadReply, task: Task, inputs: SharedInputs | None) -> None:
        """Run a concurrent task, after the earlier ones."""

        def run() -> None:
            if reply.begin():
                reply.complete(self._run_concurrent(task, inputs))

        self._concurrent.submit(run)

    def withdraw(self, reply: ThreadReply) -> bool:
        """Answer a task that has not begun, which then does not run; False if it has begun."""
        error = CallCancelledError(BEFORE_IT_BEGAN)
        failure = capture(error, self.info.label(), self.info, reply.name, live=True)
        outcome = Outcome(self.info.rank, failure=failure, started=time.time())
        if not reply.complete(outcome, unless_begun=True):
            return False
        inputs = self._waiting_for
        if self._at is reply and inputs is not None:
            inputs.give_up(outcome)
        return True

    def end(self) -> None:
        """Let the running task end, and answer the queued tasks without running them."""
        self._closing = True
        self.queue.put(None)
        self._concurrent.end()
        self.worker.loop.close()

    def give_up(self) -> None:
        """Answer the running tasks instead of the thread."""
        for reply in (self._at, *tuple(self._on_loop)):
            if reply is not None:
                reply.complete(self._lost())

    def join(self, until: float) -> bool:
        """Wait for the ends of the thread and of its event loop until then, in monotonic seconds; whether they came."""
        self.thread.join(max(0.0, until - time.monotonic()))
        return self.worker.loop.join(max(0.0, until - time.monotonic())) and not self.thread.is_alive()

    def _answer(self, reply: ThreadReply, outcome: Outcome) -> None:
        self._on_loop.discard(reply)
        reply.complete(outcome)

    def _serve(self) -> None:
        with working_as(WorkerContext(self.info.group, self.info.rank, self.info.size)):
            self._run_tasks()

    def _run_tasks(self) -> None:
        while (item := self.queue.get()) is not None:
            reply, task, inputs = item
            self._at = reply
            self._shared.at_work.add(self._label)
            outcome = self._lost() if self._closing else self._run(reply, task, inputs)
            if outcome is not None:
                reply.complete(outcome)
            self._shared.at_work.discard(self._label)
            self._at = None
            del item, reply, task, inputs, outcome
        while not self.queue.empty():  # submitted by another rank while this one was ending
            late = self.queue.get()
            if late is not None:
                late[0].complete(self._lost())

    def _run(self, reply: ThreadReply, task: Task, inputs: SharedInputs | None) -> Outcome | None:
        """Run a task; None for one that was started on the event loop, which answers it."""
        try:
            failed, given = ((), None) if inputs is None else self._read(task, inputs)
            if not reply.begin():
                return None
            if task.on_loop:
                self._on_loop.add(reply)
                self.worker.start(
                    task, failed, given, key=reply.key, answer=lambda outcome: self._answer(reply, outcome)
                )
                return None
            if task.kind == "create":
                with self._shared.turns.taken(self._generators, task.name):
                    return self.worker.run(task, failed, given)
            return self._shared.rng_use.watch(self._label, task.name, lambda: self.worker.run(task, failed, given))
        except BaseException as error:  # SystemExit ends a worker process, but here only the task
            failure = capture(error, self.info.label(), self.info, task.name, live=True)
            return Outcome(self.info.rank, failure=failure)

    def _read(self, task: Task, inputs: SharedInputs) -> tuple[Sequence[Outcome], HandedShare | None]:
        """Wait for the inputs of a task, which has its turn meanwhile."""
        waited_for = inputs.waited_for()
        if waited_for:
            self.worker.set_wait(wait_of(task.name, [waited_for], can_raise=False))
        self._waiting_for = inputs
        try:
            return inputs.of_task(task)
        finally:
            self._waiting_for = None
            self.worker.set_wait(None)

    def _run_concurrent(self, task: Task, inputs: SharedInputs | None) -> Outcome:
        if self._closing:
            return self._lost()
        try:
            failed, given = ((), None) if inputs is None else inputs.of_task(task)
            return self.worker.run(task, failed, given)
        except BaseException as error:  # as in `_run`
            failure = capture(error, self.info.label(), self.info, task.name, live=True)
            return Outcome(self.info.rank, failure=failure)

    def _lost(self) -> Outcome:
        label, node = self.info.label(), f"{self.info.node} pid {self.info.pid}"
        return Outcome(self.info.rank, failure=Failure(label, node, "Shutdown", "twinkle was shut down", died=True))
