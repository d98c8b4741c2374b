"""Every rank a thread of this process: real concurrency and deadlines, and breakpoints work."""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
from typing import TYPE_CHECKING

from twinkle_remote.backends.memory import Memory
from twinkle_remote.errors import PlacementError
from twinkle_remote.failures.capture import capture
from twinkle_remote.failures.frames import user_stack
from twinkle_remote.protocol.backend import WorkerGroup
from twinkle_remote.protocol.failure import Failure, here
from twinkle_remote.protocol.messages import Outcome
from twinkle_remote.worker.seeding import seed_process, stop_seeding
from twinkle_remote.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_mesh import DeviceGroup
    from twinkle_remote.protocol.backend import Reply
    from twinkle_remote.protocol.failure import WorkerInfo
    from twinkle_remote.protocol.messages import Task

_log = logging.getLogger("twinkle.remote")


class ThreadReply:
    """The pending answer of a thread."""

    __slots__ = ("_lock", "_waiters", "outcome", "rank", "sent")

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.sent = 0
        self.outcome: Outcome | None = None
        self._lock = threading.Lock()
        self._waiters: list[threading.Event] = []

    def done(self) -> bool:
        """Whether the outcome is there."""
        return self.outcome is not None

    def settle(self, outcome: Outcome) -> None:
        """Give the outcome, once; a later one is dropped."""
        with self._lock:
            if self.outcome is not None:
                return
            self.outcome = outcome
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.set()

    def tell(self, waiter: threading.Event) -> bool:
        """Have an event set when the outcome is there; False when it is there already."""
        with self._lock:
            if self.outcome is not None:
                return False
            self._waiters.append(waiter)
            return True

    def forget(self, waiter: threading.Event) -> None:
        """Undo `tell`."""
        with self._lock:
            if waiter in self._waiters:
                self._waiters.remove(waiter)


def wait_for_any(replies: Sequence[ThreadReply], timeout: float | None) -> Sequence[ThreadReply]:
    """Those replies that are done, after waiting for one at least; empty when the time is over."""
    ready = [reply for reply in replies if reply.outcome is not None]
    if ready or timeout == 0.0:
        return ready
    event = threading.Event()
    if all(reply.tell(event) for reply in replies):
        try:
            event.wait(timeout)
        finally:
            for reply in replies:
                reply.forget(event)
    return [reply for reply in replies if reply.outcome is not None]


class _Rank:
    """One thread and its queue of tasks."""

    def __init__(self, info: WorkerInfo, store: Memory) -> None:
        self.info = info
        self._worker = Worker(info, store, live=True)
        self._tasks: queue.SimpleQueue[tuple[ThreadReply, Task, Sequence[ThreadReply]] | None] = queue.SimpleQueue()
        self._at: ThreadReply | None = None
        self._closing = False
        self.thread = threading.Thread(target=self._serve, name=info.label(), daemon=True)
        self.thread.start()

    def submit(self, reply: ThreadReply, task: Task, inputs: Sequence[ThreadReply]) -> None:
        self._tasks.put((reply, task, inputs))

    def end(self) -> None:
        """Let the running task end, and answer those behind it without running them."""
        self._closing = True
        self._tasks.put(None)

    def give_up(self) -> None:
        """Answer the running task in the thread's place."""
        at = self._at
        if at is not None:
            at.settle(self._lost())

    def _serve(self) -> None:
        while (item := self._tasks.get()) is not None:
            reply, task, inputs = item
            self._at = reply
            reply.settle(self._lost() if self._closing else self._run(task, inputs))
            self._at = None
            del item, reply, task, inputs
        while not self._tasks.empty():  # submitted by another rank while this one was ending
            late = self._tasks.get()
            if late is not None:
                late[0].settle(self._lost())

    def _run(self, task: Task, inputs: Sequence[ThreadReply]) -> Outcome:
        try:
            outcomes = []
            for given in inputs:
                wait_for_any([given], None)
                assert given.outcome is not None
                outcomes.append(given.outcome)
            return self._worker.run(task, outcomes)
        except BaseException as error:  # SystemExit and its like end a worker process, but not a thread's caller
            failure = capture(error, self.info.label(), self.info, task.name, live=True)
            return Outcome(self.info.rank, failure=failure)

    def _lost(self) -> Outcome:
        label, node = self.info.label(), f"{self.info.node} pid {self.info.pid}"
        return Outcome(self.info.rank, failure=Failure(label, node, "Shutdown", "twinkle was shut down", died=True))


class ThreadGroup(WorkerGroup):
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
                out[rank] = user_stack(frame)
        return out

    def end(self) -> None:
        """Begin to end the threads."""
        for rank in self._ranks:
            rank.end()

    def join(self, until: float) -> Sequence[str]:
        """Wait for the threads' end; the names of those that are still busy at `until` (monotonic seconds)."""
        for rank in self._ranks:
            rank.thread.join(max(0.0, until - time.monotonic()))
        busy = [rank for rank in self._ranks if rank.thread.is_alive()]
        for rank in busy:
            rank.give_up()
        return [rank.thread.name for rank in busy]


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
        close_timeout: float = 1.0,
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
        return wait_for_any([reply for reply in replies if isinstance(reply, ThreadReply)], timeout)

    def outcome(self, reply: Reply) -> Outcome:
        """The outcome of a reply that is done."""
        assert isinstance(reply, ThreadReply) and reply.outcome is not None
        return reply.outcome

    def close(self) -> None:
        """End the threads; a busy one is left to end with the process, and a warning names it."""
        stop_seeding()
        until = time.monotonic() + self._close_timeout
        groups, self._groups = self._groups, {}
        for group in groups.values():
            group.end()
        busy = [name for group in groups.values() for name in group.join(until)]
        if busy:
            _log.warning("threads still busy at shutdown, they end with the process: %s", ", ".join(busy))
