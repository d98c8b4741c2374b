"""The threads backend: each rank is a daemon thread of this process with a queue of tasks; breakpoints work."""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from twinkle_remote.context import WorkerContext, user_stack, working_as
from twinkle_remote.errors import BEFORE_IT_BEGAN, CallCancelledError, PlacementError
from twinkle_remote.failures.travel import capture
from twinkle_remote.protocol.backend import Backend, Memory, Reply, WorkerGroup
from twinkle_remote.protocol.messages import Failure, Outcome, here
from twinkle_remote.sessions.seeding import seed_process
from twinkle_remote.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_mesh import DeviceGroup
    from twinkle_remote.protocol.backend import InputReplies
    from twinkle_remote.protocol.messages import Task, WorkerInfo

_log = logging.getLogger("twinkle.remote")


class ThreadReply(Reply):
    """The answer of a thread.

    Args:
        rank: Rank of the worker.
        task: Its task.

    Attributes:
        name: Class.method.
        on_loop: Whether the task runs on the event loop, by this reply as its key.
        claimed: Its task has begun, or it was withdrawn.
    """

    def __init__(self, rank: int, task: Task) -> None:
        super().__init__(rank)
        self.name, self.on_loop, self.claimed = task.name, task.on_loop, False


class _Item(NamedTuple):
    """A task in the queue of a thread."""

    reply: ThreadReply
    task: Task
    inputs: InputReplies


_Queue = queue.SimpleQueue[_Item | None]


class RankThread:
    """The thread of one rank and its queue of tasks, and a thread for tasks that run beside these.

    Attributes:
        queue: The rank's tasks, and None at the end.
        concurrent: Those that run beside them, and None at the end.
    """

    def __init__(self, info: WorkerInfo, store: Memory) -> None:
        self.info = info
        self.worker = Worker(info, store, live=True)
        self.queue: _Queue = queue.SimpleQueue()
        self.concurrent: _Queue = queue.SimpleQueue()
        self._at: dict[ThreadReply, InputReplies] = {}  # of tasks that run, or wait for their inputs
        self._claiming = threading.Lock()
        self._closing = False
        self.thread = self._start(info.label(), self.queue)
        self._start(f"{info.label()} concurrent", self.concurrent)

    def _start(self, name: str, tasks: _Queue) -> threading.Thread:
        thread = threading.Thread(target=self._serve, args=(tasks,), name=name, daemon=True)
        thread.start()
        return thread

    def cancel(self, reply: ThreadReply) -> None:
        """Cancel a task of the event loop; answer another one that has not begun, which then does not run."""
        if self._claim(reply):
            inputs, outcome = self._at.get(reply), self._failed(CallCancelledError(BEFORE_IT_BEGAN), reply.name)
            reply.answer(outcome)
            if inputs is not None:
                inputs.give_up(outcome)
        elif reply.on_loop:
            self.worker.loop.cancel(reply)

    def _claim(self, reply: ThreadReply) -> bool:
        with self._claiming:
            claimed, reply.claimed = reply.claimed, True
        return not claimed

    def end(self) -> None:
        """Let the running task end, and answer the queued tasks without running them."""
        self._closing = True
        self.queue.put(None)
        self.concurrent.put(None)
        self.worker.loop.close()

    def give_up(self) -> None:
        """Answer the running tasks instead of the thread."""
        for reply in tuple(self._at):
            reply.answer(self._lost())

    def join(self, until: float) -> bool:
        """Wait for the ends of the thread and of its event loop until then, in monotonic seconds; whether they came."""
        self.thread.join(max(0.0, until - time.monotonic()))
        return self.worker.loop.join(max(0.0, until - time.monotonic())) and not self.thread.is_alive()

    def _serve(self, tasks: _Queue) -> None:
        with working_as(WorkerContext(self.info.group, self.info.rank, self.info.size)):
            while (item := tasks.get()) is not None:
                self._run(item)
                del item
        while not tasks.empty():  # submitted by another rank while this one was ending
            if (late := tasks.get()) is not None:
                late.reply.answer(self._lost())

    def _run(self, item: _Item) -> None:
        """Wait for the inputs of a task, and run it, or start it on the event loop, which answers it."""
        reply, task, inputs = item
        if self._closing:
            reply.answer(self._lost())
            return
        self._at[reply] = inputs
        reply.add_done_callback(lambda _: self._at.pop(reply, None))
        if reply.claimed:  # it was withdrawn in the queue
            return
        try:
            failure, reads = inputs.of_task(task)
            if not self._claim(reply):  # it was withdrawn meanwhile
                return
            if task.on_loop:
                self.worker.start(task, failure, reads, key=reply, answer=reply.answer)
            else:
                reply.answer(self.worker.run(task, failure, reads))
        except BaseException as error:  # SystemExit ends a worker process, but here only the task
            reply.answer(self._failed(error, task.name))

    def _failed(self, error: BaseException, name: str) -> Outcome:
        failure = capture(error, self.info.label(), self.info, name, live=True)
        return Outcome(self.info.rank, failure=failure, started=time.time())

    def _lost(self) -> Outcome:
        label, node = self.info.label(), f"{self.info.node} pid {self.info.pid}"
        return Outcome(self.info.rank, failure=Failure(label, node, "Shutdown", "twinkle was shut down", died=True))


class ThreadGroup(WorkerGroup):
    """The threads of one group."""

    def __init__(self, name: str, size: int, store: Memory) -> None:
        self.name, self.size = name, size
        self._ranks = [RankThread(here(name, rank, size), store) for rank in range(size)]

    def info(self, rank: int) -> WorkerInfo:
        """Identity of the worker of a rank."""
        return self._ranks[rank].info

    def submit(
        self, ranks: Sequence[int], tasks: Sequence[Task], of_rank: Sequence[int], inputs: InputReplies
    ) -> Sequence[ThreadReply]:
        """Queue the tasks of one call: those of all ranks in one step of the interpreter, so that Ctrl-C parts none.

        Their arguments are as they are now: the caller may write to its own before a task begins.
        """
        tasks = [_as_now(task) if task.args or task.kwargs else task for task in tasks]
        chosen = [tasks[index] for index in of_rank]
        replies = [ThreadReply(rank, task) for rank, task in zip(ranks, chosen, strict=True)]
        items = [_Item(reply, task, inputs) for reply, task in zip(replies, chosen, strict=True)]
        threads = [self._ranks[rank] for rank in ranks]
        queues = [thread.concurrent if chosen[0].kind == "beside" else thread.queue for thread in threads]
        deque(map(queue.SimpleQueue.put, queues, items), 0)
        return replies

    def stacks(self, replies: Sequence[Reply]) -> Mapping[int, str]:
        """Where the threads are, or the coroutines that the replies wait for."""
        frames, found = sys._current_frames(), {}
        for reply in replies:
            rank = self._ranks[reply.rank]
            frame = frames.get(rank.thread.ident or 0)
            found[reply.rank] = rank.worker.loop.stack(reply) or (user_stack(frame) if frame is not None else None)
        return {rank: stack for rank, stack in found.items() if stack is not None}

    def cancel(self, replies: Sequence[Reply]) -> None:
        """Cancel tasks of event loops, and tasks that have not begun."""
        for reply in replies:
            if isinstance(reply, ThreadReply):
                self._ranks[reply.rank].cancel(reply)

    def end(self) -> None:
        """Start to end the threads; does not wait for them."""
        for rank in self._ranks:
            rank.end()

    def join(self, until: float) -> Sequence[str]:
        """Wait for the threads to end; returns the names of those that are busy at `until` (monotonic seconds)."""
        busy = [rank for rank in self._ranks if not rank.join(until)]
        for rank in busy:
            rank.give_up()
        return [rank.thread.name for rank in busy]


def _as_now(task: Task) -> Task:
    from twinkle_remote.rows.plain import snapshot  # most tasks of a short program have no arguments

    args, kwargs = snapshot((task.args, task.kwargs), keep=True)
    return replace(task, args=args, kwargs=kwargs)


class ThreadsBackend(Backend):
    """Groups of threads.

    Args:
        groups: At least one.
        seed: Seed of this process.
        start_timeout: Seconds that a constructor may take; None for no limit.
        close_timeout: Seconds that `close` waits for busy threads; after that they end with the process.
    """

    def __init__(
        self,
        groups: Sequence[DeviceGroup],
        *,
        seed: int = 42,
        start_timeout: float | None = 120.0,
        close_timeout: float = 1.0,
    ) -> None:
        seed_process(seed)
        self.start_timeout = start_timeout
        self._close_timeout = close_timeout
        self.store = Memory(copies=True)
        self._groups = {group.name: ThreadGroup(group.name, group.num_workers, Memory()) for group in groups}

    def group(self, name: str) -> ThreadGroup:
        """A group by name."""
        if name not in self._groups:
            known = ", ".join(map(repr, self._groups)) or "none"
            raise PlacementError(f"there is no group {name!r}; initialize was given {known}")
        return self._groups[name]

    def close(self) -> None:
        """End the threads. A busy thread ends with the process, and a warning names it."""
        until = time.monotonic() + self._close_timeout
        groups, self._groups = self._groups, {}
        for group in groups.values():
            group.end()
        busy = [name for group in groups.values() for name in group.join(until)]
        if busy:
            _log.warning("threads still busy at shutdown, they end with the process: %s", ", ".join(busy))
