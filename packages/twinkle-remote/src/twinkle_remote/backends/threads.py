"""The threads backend: each rank is a thread of this process, with real concurrency and deadlines; breakpoints work."""

from __future__ import annotations

import logging
import queue
import sys
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from twinkle_remote.backends.memory import CallersMemory, Memory
from twinkle_remote.backends.rank_thread import RankThread, Shared
from twinkle_remote.backends.shared_inputs import SharedInputs
from twinkle_remote.backends.thread_reply import ThreadReply, ThreadReplyBackend
from twinkle_remote.context import ranks_are_threads, ranks_were_threads
from twinkle_remote.errors import PlacementError
from twinkle_remote.failures.frames import user_stack
from twinkle_remote.protocol.backend import WorkerGroup
from twinkle_remote.protocol.failure import here
from twinkle_remote.sessions.seeding import seed_process, stop_seeding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_mesh import DeviceGroup
    from twinkle_remote.protocol.backend import InputReplies, Reply
    from twinkle_remote.protocol.failure import WorkerInfo
    from twinkle_remote.protocol.messages import Task
    from twinkle_remote.protocol.waiting import WorkerWaits

_log = logging.getLogger("twinkle.remote")
_PATIENCE = 60.0  # seconds


class ThreadGroup(WorkerGroup):
    """The threads of one group."""

    def __init__(self, name: str, size: int, store: Memory, shared: Shared) -> None:
        self.name, self.size = name, size
        self._ranks = [RankThread(here(name, rank, size), store, shared) for rank in range(size)]

    def info(self, rank: int) -> WorkerInfo:
        """Identity of the worker of a rank."""
        return self._ranks[rank].info

    def prepare(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """The tasks with their arguments as they are now: the caller may write to its own before a task begins."""
        return [_as_now(task) if task.args or task.kwargs else task for task in tasks]

    def submit(self, rank: int, task: Task, inputs: InputReplies) -> ThreadReply:
        """Queue a task."""
        reply = self._reply(rank, task, inputs)
        submit = self._ranks[rank].submit_concurrent if task.concurrent else self._ranks[rank].submit
        submit(reply, task, inputs.shared)
        return reply

    def submit_all(
        self, ranks: Sequence[int], tasks: Sequence[Task], of_rank: Sequence[int], inputs: InputReplies
    ) -> Sequence[ThreadReply]:
        """Queue the tasks of one call: those of all ranks in one step of the interpreter, so that Ctrl-C parts none."""
        chosen = [tasks[index] for index in of_rank]
        if any(task.concurrent for task in chosen):
            return [self.submit(rank, task, inputs) for rank, task in zip(ranks, chosen, strict=True)]
        replies = [self._reply(rank, task, inputs) for rank, task in zip(ranks, chosen, strict=True)]
        items = [(reply, task, inputs.shared) for reply, task in zip(replies, chosen, strict=True)]
        queues = [self._ranks[rank].queue for rank in ranks]
        deque(map(queue.SimpleQueue.put, queues, items), 0)
        return replies

    def _reply(self, rank: int, task: Task, inputs: InputReplies) -> ThreadReply:
        if inputs and inputs.shared is None:
            inputs.shared = SharedInputs(_own(inputs), _own(inputs.watched), inputs.plan)
        return ThreadReply(rank, on_loop=task.on_loop, at=None if task.concurrent else self.name, name=task.name)

    def stacks(self, ranks: Sequence[int]) -> Mapping[int, str]:
        """Stack traces of the threads of the given ranks."""
        frames = sys._current_frames()
        out = {}
        for rank in ranks:
            frame = frames.get(self._ranks[rank].thread.ident or 0)
            if frame is not None:
                out[rank] = user_stack(frame)
        return out

    def loop_keys(self, replies: Sequence[Reply]) -> Sequence[str | None]:
        """The keys of tasks of event loops."""
        return [reply.key for reply in _own(replies)]

    def waits(self, ranks: Sequence[int]) -> Mapping[int, WorkerWaits]:
        """The waits of the tasks of ranks, by rank."""
        return {rank: self._ranks[rank].worker.waits for rank in ranks}

    def stacks_of(self, replies: Sequence[Reply]) -> Mapping[int, str]:
        """Where the threads are, or the coroutines that the replies wait for."""
        found = {reply.rank: self._ranks[reply.rank].worker.loop.stack(reply.key) for reply in _own(replies)}
        known = {rank: stack for rank, stack in found.items() if stack is not None}
        return {**self.stacks([rank for rank in found if rank not in known]), **known}

    def cancel(self, replies: Sequence[Reply]) -> None:
        """Cancel tasks of event loops."""
        for reply in _own(replies):
            if reply.on_loop:
                self._ranks[reply.rank].worker.loop.cancel(reply.key)

    def withdraw(self, replies: Sequence[Reply]) -> None:
        """Cancel tasks of event loops, and tasks that have not begun."""
        for reply in _own(replies):
            if not self._ranks[reply.rank].withdraw(reply) and reply.on_loop:
                self._ranks[reply.rank].worker.loop.cancel(reply.key)

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
    from twinkle_remote.values.snapshot import snapshot  # most tasks of a short program have no arguments

    args, kwargs = snapshot((task.args, task.kwargs), keep=True)
    return replace(task, args=args, kwargs=kwargs)


def _own(replies: Sequence[Reply]) -> Sequence[ThreadReply]:
    mine = [reply for reply in replies if isinstance(reply, ThreadReply)]
    assert len(mine) == len(replies), "replies of another backend"
    return mine


class ThreadsBackend(ThreadReplyBackend):
    """Groups of threads.

    Args:
        groups: At least one.
        seed: Seed of this process and of the generators of each rank; constructors run with these, one at a time.
        start_timeout: Seconds that a constructor may take; None for no limit.
        close_timeout: Seconds that `close` waits for busy threads; after that they end with the process.

    Attributes:
        queues_in_memory: Submitting a task only queues it.
    """

    queues_in_memory = True

    def __init__(
        self,
        groups: Sequence[DeviceGroup],
        *,
        seed: int = 42,
        start_timeout: float | None = 120.0,
        close_timeout: float = 1.0,
    ) -> None:
        seed_process(seed)
        ranks_are_threads()
        self.start_timeout = start_timeout
        self._close_timeout = close_timeout
        self.store = CallersMemory()
        self._shared = Shared(seed, _PATIENCE if start_timeout is None else start_timeout / 2)
        self._groups = {
            group.name: ThreadGroup(group.name, group.num_workers, Memory(), self._shared) for group in groups
        }

    def group(self, name: str) -> ThreadGroup:
        """A group by name."""
        if name not in self._groups:
            known = ", ".join(map(repr, self._groups)) or "none"
            raise PlacementError(f"there is no group {name!r}; initialize was given {known}")
        return self._groups[name]

    def wait(self, replies: Sequence[Reply], timeout: float | None) -> Sequence[Reply]:
        """Wait until at least one reply is done."""
        if timeout == 0.0 or not self._shared.turns.is_mine():
            return super().wait(replies, timeout)
        with self._shared.turns.left():
            return super().wait(replies, timeout)

    def close(self) -> None:
        """End the threads. A busy thread ends with the process, and a warning names it."""
        stop_seeding()
        ranks_were_threads()
        until = time.monotonic() + self._close_timeout
        groups, self._groups = self._groups, {}
        for group in groups.values():
            group.end()
        busy = [name for group in groups.values() for name in group.join(until)]
        if busy:
            _log.warning("threads still busy at shutdown, they end with the process: %s", ", ".join(busy))
