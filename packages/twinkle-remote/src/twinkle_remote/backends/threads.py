"""Every rank a thread of this process: real concurrency and deadlines, and breakpoints work."""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
import traceback
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TYPE_CHECKING

from twinkle_remote.backends.memory import Memory, seed_process
from twinkle_remote.errors import PlacementError
from twinkle_remote.failure import WorkerInfo, capture, here
from twinkle_remote.protocol import Outcome
from twinkle_remote.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_mesh import DeviceGroup
    from twinkle_remote.protocol import Reply, Task

_log = logging.getLogger("twinkle.remote")


class ThreadReply:
    """The pending answer of a thread."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.future: Future[Outcome] = Future()

    def done(self) -> bool:
        """Whether the outcome is there."""
        return self.future.done()


class _Rank:
    """One thread and its queue of tasks."""

    def __init__(self, info: WorkerInfo, store: Memory) -> None:
        self.info = info
        self._worker = Worker(info, store, live=True)
        self._tasks: queue.SimpleQueue[tuple[ThreadReply, Task, Sequence[ThreadReply]] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._serve, name=info.label(), daemon=True)
        self.thread.start()

    def submit(self, reply: ThreadReply, task: Task, inputs: Sequence[ThreadReply]) -> None:
        self._tasks.put((reply, task, inputs))

    def end(self) -> None:
        self._tasks.put(None)

    def _serve(self) -> None:
        while (item := self._tasks.get()) is not None:
            reply, task, inputs = item
            try:
                reply.future.set_result(self._worker.run(task, [given.future.result() for given in inputs]))
            except BaseException as error:  # SystemExit and its like end a worker process, but not a thread's caller
                failure = capture(error, self.info.label(), self.info, task.name, live=True)
                reply.future.set_result(Outcome(reply.rank, failure=failure))
            del item, reply, task, inputs


class ThreadGroup:
    """The threads of one group."""

    def __init__(self, name: str, size: int, store: Memory) -> None:
        self._name = name
        self._ranks = [_Rank(here(name, rank, size), store) for rank in range(size)]

    @property
    def name(self) -> str:
        """Name of the group."""
        return self._name

    @property
    def size(self) -> int:
        """Number of threads."""
        return len(self._ranks)

    def info(self, rank: int) -> WorkerInfo:
        """Who the worker of a rank is."""
        return self._ranks[rank].info

    def submit(self, rank: int, task: Task, inputs: Sequence[Reply]) -> ThreadReply:
        """Queue a task."""
        reply = ThreadReply(rank)
        given = [reply for reply in inputs if isinstance(reply, ThreadReply)]
        assert len(given) == len(inputs), "replies of another backend"
        self._ranks[rank].submit(reply, task, given)
        return reply

    def stacks(self, ranks: Sequence[int]) -> Mapping[int, str]:
        """Where the threads are."""
        frames = sys._current_frames()
        out = {}
        for rank in ranks:
            frame = frames.get(self._ranks[rank].thread.ident or 0)
            if frame is not None:
                out[rank] = "".join(traceback.format_stack(frame)[-4:])
        return out

    def close(self, until: float) -> Sequence[str]:
        """End the threads; the names of those that are still busy at `until` (monotonic seconds)."""
        for rank in self._ranks:
            rank.end()
        for rank in self._ranks:
            rank.thread.join(max(0.0, until - time.monotonic()))
        return [rank.thread.name for rank in self._ranks if rank.thread.is_alive()]


class ThreadsBackend:
    """Groups of threads.

    Args:
        groups: At least one.
        seed: Seeds this process, once: its threads share the generators.
        start_timeout: Seconds that a constructor may take; None for no limit.
        close_timeout: Seconds that `close` waits for busy threads, which end with the process otherwise.
    """

    def __init__(
        self,
        groups: Sequence[DeviceGroup],
        *,
        seed: int = 42,
        start_timeout: float | None = 120.0,
        close_timeout: float = 5.0,
    ) -> None:
        seed_process(seed)
        self.start_timeout = start_timeout
        self._close_timeout = close_timeout
        self._store = Memory()
        self._groups = {group.name: ThreadGroup(group.name, group.num_workers, self._store) for group in groups}

    @property
    def store(self) -> Memory:
        """The store that every thread reads and writes."""
        return self._store

    def group(self, name: str) -> ThreadGroup:
        """A group by name."""
        if name not in self._groups:
            known = ", ".join(map(repr, self._groups)) or "none"
            raise PlacementError(f"there is no group {name!r}; initialize was given {known}")
        return self._groups[name]

    def wait(self, replies: Sequence[Reply], timeout: float | None) -> Sequence[Reply]:
        """Wait until at least one reply is done."""
        futures = {reply.future: reply for reply in replies if isinstance(reply, ThreadReply)}
        ready = wait(futures, timeout, FIRST_COMPLETED).done
        return [reply for future, reply in futures.items() if future in ready]

    def outcome(self, reply: Reply) -> Outcome:
        """The outcome of a reply that is done."""
        assert isinstance(reply, ThreadReply)
        return reply.future.result()

    def close(self) -> None:
        """End the threads; a busy one is left to end with the process, and a warning names it."""
        until = time.monotonic() + self._close_timeout
        busy = [name for group in self._groups.values() for name in group.close(until)]
        self._groups = {}
        if busy:
            _log.warning("threads still busy at shutdown, they end with the process: %s", ", ".join(busy))
