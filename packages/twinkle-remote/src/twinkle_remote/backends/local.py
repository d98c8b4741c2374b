"""The local backend: one process; or, under torchrun, all processes, each one rank of every component.

Under torchrun every process runs the same program. A call of a component with a mesh takes this process's share of the
arguments, runs, and reads the outcomes of the others, so that every process goes on with the same value.
"""

from __future__ import annotations

import logging
import os
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import wait as wait_for_some
from itertools import count
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from twinkle_mesh import launched
from twinkle_remote.backends.memory import CallersMemory, Memory
from twinkle_remote.context import leaves_running, run_apart
from twinkle_remote.errors import BackendError, CallTimeoutError
from twinkle_remote.protocol.backend import Backend, WorkerGroup
from twinkle_remote.protocol.failure import here
from twinkle_remote.sessions.seeding import seed_process, stop_seeding
from twinkle_remote.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from twinkle_mesh import DeviceGroup, DeviceMesh
    from twinkle_remote.backends.exchange import Exchange
    from twinkle_remote.protocol.backend import InputReplies, Reply
    from twinkle_remote.protocol.failure import WorkerInfo
    from twinkle_remote.protocol.messages import Outcome, Task
    from twinkle_remote.protocol.waiting import WorkerWaits


_log = logging.getLogger("twinkle.remote")
_HASH_SEED = (
    "each process orders sets of texts in another way, and so what is built in their order: start the program with "
    "PYTHONHASHSEED=0 in the environment"
)
_CLOSE_SECONDS = 1.0
_numbers = count()
_SLICE_SECONDS = 0.5  # between two looks for a signal


class LocalReply:
    """A reply that is done, or that another process of this program will send."""

    __slots__ = ("__weakref__", "key", "name", "number", "outcome", "rank", "running", "sent")

    def __init__(self, rank: int, name: str, *, on_loop: bool = False) -> None:
        self.key = f"{next(_numbers)}" if on_loop else ""
        self.rank = rank
        self.sent = 0
        self.name = name
        self.number = 0
        self.outcome: Outcome | None = None
        self.running: Future[Outcome] | None = None

    def done(self) -> bool:
        """Whether the outcome has arrived."""
        return self.outcome is not None or (self.running is not None and self.running.done())


class LocalGroup(WorkerGroup):
    """This process as a group of one, or the launched processes as a group of all."""

    def __init__(self, name: str, rank: int, size: int, store: Memory, exchange: Exchange | None) -> None:
        self.name, self.size = name, size
        self._rank = rank
        self._exchange = exchange
        self._worker = Worker(
            here(name, rank, size), store, live=size == 1, shared=True, instances=WeakValueDictionary()
        )

    def info(self, rank: int) -> WorkerInfo:
        """Identity of the worker of a rank."""
        return here(self.name, rank, self.size)

    def submit(self, rank: int, task: Task, inputs: InputReplies) -> LocalReply:
        """Run the task if the rank is this process; otherwise the other process runs it.

        An async task is run to its end, unless an event loop or a server has called it, which goes on.
        """
        reply = LocalReply(rank, task.name, on_loop=task.on_loop)
        if self._exchange is not None:
            reply.number = self._exchange.number(reply)
        if rank == self._rank:
            outcomes = [self.read(given, None) for given in inputs]
            if task.on_loop and self._exchange is None and leaves_running():
                reply.running = Future()
                run_apart(self._worker.start, task, outcomes, key=reply.key, answer=reply.running.set_result)
                return reply
            reply.outcome = run_apart(self._worker.run, task, outcomes)
            if self._exchange is not None:
                self._exchange.post(reply.number, task.name, reply.outcome)
        return reply

    def read(self, reply: Reply, timeout: float | None) -> Outcome:
        """Wait for the outcome of a reply."""
        assert isinstance(reply, LocalReply), "a reply of another backend"
        if reply.running is not None:
            reply.outcome = reply.running.result()
        if reply.outcome is None:
            assert self._exchange is not None
            reply.outcome = self._exchange.read(reply.number, reply.name, reply.rank, timeout)
        return reply.outcome

    def adopt(self, instance: str, value: object, mesh: DeviceMesh | None) -> bool:
        """Register a component that was built in this process; False if it lacks weak references."""
        return self._worker.adopt(instance, value, mesh)

    def stacks_of(self, replies: Sequence[Reply]) -> Mapping[int, str]:
        """Where the coroutines of this process wait."""
        found = {reply.rank: self._worker.loop.stack(reply.key) for reply in replies if isinstance(reply, LocalReply)}
        return {rank: stack for rank, stack in found.items() if stack is not None}

    def loop_keys(self, replies: Sequence[Reply]) -> Sequence[str | None]:
        """The keys of the coroutines of this process."""
        return [reply.key or None if isinstance(reply, LocalReply) else None for reply in replies]

    def waits(self, ranks: Sequence[int]) -> Mapping[int, WorkerWaits]:
        """The waits of the coroutines of this process; of other processes nothing is known."""
        return {rank: self._worker.waits for rank in ranks if rank == self._rank}

    def cancel(self, replies: Sequence[Reply]) -> None:
        """Cancel the coroutines of this process."""
        for reply in replies:
            if isinstance(reply, LocalReply) and reply.running is not None:
                self._worker.loop.cancel(reply.key)

    def end(self, seconds: float) -> None:
        """Cancel the coroutines that run, and wait for their ends for at most so many seconds."""
        self._worker.loop.close()
        self._worker.loop.join(seconds)

    def stacks(self, ranks: Sequence[int]) -> Mapping[int, str]:
        """No stacks: this process is the caller, and the stacks of other processes cannot be read."""
        return {}


class LocalBackend(Backend):
    """One process, or the processes that torchrun started.

    Args:
        groups: The groups, for their names; every group consists of the same processes.
        seed: Seed of this process; also for numpy and torch if they are loaded later.
        exchange_timeout: Seconds that a process waits for the others' outcomes of a call.
    """

    own_group = "(this process)"

    def __init__(self, groups: Sequence[DeviceGroup], *, seed: int = 42, exchange_timeout: float = 600.0) -> None:
        seed_process(seed)
        self._rank, self._size = _place_of_process()
        self.store = CallersMemory()
        self._groups: dict[str, LocalGroup] = {}
        self._exchange: Exchange | None = None
        if self._size > 1:
            from twinkle_remote.backends.exchange import Exchange

            self._exchange = Exchange(self._rank, self._size, exchange_timeout)
            if not os.environ.get("PYTHONHASHSEED", "").isdecimal():
                _log.warning(_HASH_SEED)

    @property
    def rank(self) -> int:
        """Rank of this process among those of the program."""
        return self._rank

    def group(self, name: str) -> LocalGroup:
        """The group of that name; all groups have the same processes, except this process's own group."""
        if name not in self._groups:
            self._check_place()
            exchange = None if name == self.own_group else self._exchange
            self._groups[name] = LocalGroup(name, self._rank, self._size, Memory(), exchange)
        return self._groups[name]

    def adopt(self, group: str, instance: str, value: object, mesh: DeviceMesh | None) -> bool:
        """Register a component that was built in this process."""
        return self.group(group).adopt(instance, value, mesh)

    def wait(self, replies: Sequence[Reply], timeout: float | None) -> Sequence[Reply]:
        """Read outcomes that other processes have sent, or wait for them."""
        mine = [reply for reply in replies if isinstance(reply, LocalReply)]
        running = [reply.running for reply in mine if reply.running is not None]
        if running and timeout != 0.0:
            wait_for_some(running, _SLICE_SECONDS if timeout is None else min(timeout, _SLICE_SECONDS), FIRST_COMPLETED)
        ready = [reply for reply in mine if reply.done() or self._has_arrived(reply)]
        if not ready and not running and timeout != 0.0:
            ready = mine[:1]
        try:
            for reply in ready:
                self.group("local").read(reply, timeout)
        except CallTimeoutError:
            if timeout is None:
                raise
            return []
        return ready

    def when_done(self, reply: Reply, notify: Callable[[], None]) -> bool:
        """Call a function for a reply that is done, as most are; the caller asks for the others."""
        if reply.done():
            notify()
            return True
        return False

    def outcome(self, reply: Reply) -> Outcome:
        """The outcome of a reply that is done."""
        assert isinstance(reply, LocalReply) and reply.outcome is not None
        return reply.outcome

    def after_fork(self) -> bool:
        """Whether calls can go on: a forked process has its own components, but is not a launched process."""
        return self._exchange is None

    def close(self) -> None:
        """Forget the components."""
        stop_seeding()
        groups, self._groups = self._groups, {}
        for group in groups.values():
            group.end(_CLOSE_SECONDS)
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None

    def _check_place(self) -> None:
        """Raise where torch's process group was made later than this session, which then divides no call over it."""
        rank, size = _place_of_process()
        if size > 1 and (rank, size) != (self._rank, self._size):
            raise BackendError(
                f"this session began as rank {self._rank} of {self._size}, and this process is now rank {rank} of "
                f"{size}: each process would run all rows. Call init_process_group before initialize"
            )

    def _has_arrived(self, reply: LocalReply) -> bool:
        return self._exchange is not None and self._exchange.has(reply.number)


def _place_of_process() -> tuple[int, int]:
    """Rank of this process and number of processes of the program."""
    place = launched()
    return (0, 1) if place is None or place.world_size is None else (place.rank, place.world_size)
