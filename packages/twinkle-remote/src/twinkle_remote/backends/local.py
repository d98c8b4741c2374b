"""The local backend: one process; or, under torchrun, all processes, each one rank of every component.

Under torchrun every process runs the same program. A call of a component with a mesh takes this process's share of the
arguments, runs, and reads the outcomes of the others, so that every process goes on with the same value.
"""

from __future__ import annotations

import logging
import os
import queue
import time
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from twinkle_mesh import launched
from twinkle_remote.context import in_event_loop, named_elsewhere
from twinkle_remote.errors import BackendError
from twinkle_remote.protocol.backend import Backend, Memory, Reply, WorkerGroup
from twinkle_remote.protocol.messages import Failure, Outcome, here
from twinkle_remote.sessions.seeding import seed_process
from twinkle_remote.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_mesh import DeviceGroup, DeviceMesh
    from twinkle_remote.backends.exchange import Exchange
    from twinkle_remote.protocol.backend import InputReplies
    from twinkle_remote.protocol.messages import Task, WorkerInfo


_log = logging.getLogger("twinkle.remote")
_HASH_SEED = (
    "each process orders sets of texts in another way, and so what is built in their order: start the program with "
    "PYTHONHASHSEED=0 in the environment"
)
_CLOSE_SECONDS = 1.0
_SLICE_SECONDS = 0.25  # between two looks for a signal


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

    def submit(
        self, ranks: Sequence[int], tasks: Sequence[Task], of_rank: Sequence[int], inputs: InputReplies
    ) -> Sequence[Reply]:
        """Run this process's task; with other processes, trade its outcome for theirs, in every call.

        An async task is run to its end, unless an event loop or a server has called it, which goes on.

        Raises:
            CallTimeoutError: A process has not answered within the call's deadline, or has not made the call in time.
            TwinkleError: It has made another one.
        """
        began, replies = time.monotonic(), [Reply(rank) for rank in ranks]
        own = next((place for place, rank in enumerate(ranks) if rank == self._rank), None)
        if own is None or self._exchange is not None:
            outcome = None if own is None else self._run(tasks[of_rank[own]], inputs)
            self._trade(tasks[0], replies, outcome, began)
            return replies
        task, (reply,) = tasks[of_rank[own]], replies
        if task.on_loop and (in_event_loop() or named_elsewhere()):
            self._worker.start(task, *inputs.of_task(task), key=reply, answer=reply.answer)
        else:
            reply.answer(self._run(task, inputs))
        return replies

    def _run(self, task: Task, inputs: InputReplies) -> Outcome:
        """Run a task to its end; an interrupt cancels a coroutine."""
        if not task.on_loop:
            return self._worker.run(task, *inputs.of_task(task))
        answers: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._worker.start(task, *inputs.of_task(task), key=answers, answer=answers.put)
        try:
            while True:
                with suppress(queue.Empty):  # a signal that comes just before the wait is not seen before its end
                    return answers.get(timeout=_SLICE_SECONDS)
        except KeyboardInterrupt:
            self._worker.loop.cancel(answers)
            raise

    def _trade(self, task: Task, replies: Sequence[Reply], outcome: Outcome | None, began: float) -> None:
        assert self._exchange is not None
        parts = self._exchange.trade(task.name, outcome, task.seconds, began)
        for reply in replies:
            part = parts.get(reply.rank)
            if part is None:
                label = here(self.name, reply.rank, self.size).label()
                text = "its answer was not awaited, because the call had failed on another rank"
                failure = Failure(label, "", "CallTimeoutError", text, method=task.name, upstream=True)
                part = Outcome(reply.rank, failure=failure)
            reply.answer(part)

    def adopt(self, instance: str, value: object, mesh: DeviceMesh | None) -> bool:
        """Register a component that was built in this process; False if it lacks weak references."""
        return self._worker.adopt(instance, value, mesh)

    def stacks(self, replies: Sequence[Reply]) -> Mapping[int, str]:
        """Where the coroutines of this process wait; the stacks of other processes cannot be read."""
        found = {reply.rank: self._worker.loop.stack(reply) for reply in replies}
        return {rank: stack for rank, stack in found.items() if stack is not None}

    def cancel(self, replies: Sequence[Reply]) -> None:
        """Cancel the coroutines of this process."""
        for reply in replies:
            if not reply.done():
                self._worker.loop.cancel(reply)

    def end(self, seconds: float) -> None:
        """Cancel the coroutines that run, and wait for their ends for at most so many seconds."""
        self._worker.loop.close()
        self._worker.loop.join(seconds)


class LocalBackend(Backend):
    """One process, or the processes that torchrun started.

    Args:
        groups: The groups, for their names; every group consists of the same processes.
        seed: Seed of this process.
        exchange_timeout: Seconds that a process waits for the others' outcomes of a call.
    """

    in_process = True
    own_group = "(this process)"

    def __init__(self, groups: Sequence[DeviceGroup], *, seed: int = 42, exchange_timeout: float = 600.0) -> None:
        seed_process(seed)
        self.rank, self._size = _place_of_process()
        self.store = Memory(copies=True)
        self._groups: dict[str, LocalGroup] = {}
        self._exchange: Exchange | None = None
        if self._size > 1:
            from twinkle_remote.backends.exchange import Exchange

            self._exchange = Exchange(self.rank, self._size, exchange_timeout)
            if not os.environ.get("PYTHONHASHSEED", "").isdecimal():
                _log.warning(_HASH_SEED)

    def group(self, name: str) -> LocalGroup:
        """The group of that name; all groups have the same processes, except this process's own group."""
        if name not in self._groups:
            self._check_place()
            exchange = None if name == self.own_group else self._exchange
            self._groups[name] = LocalGroup(name, self.rank, self._size, Memory(), exchange)
        return self._groups[name]

    def adopt(self, group: str, instance: str, value: object, mesh: DeviceMesh | None) -> bool:
        """Register a component that was built in this process."""
        return self.group(group).adopt(instance, value, mesh)

    def after_fork(self) -> bool:
        """Whether calls can go on: a forked process has its own components, but is not a launched process."""
        return self._exchange is None

    def close(self) -> None:
        """Forget the components."""
        groups, self._groups = self._groups, {}
        for group in groups.values():
            group.end(_CLOSE_SECONDS)
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None

    def _check_place(self) -> None:
        """Raise where torch's process group was made later than this session, which then divides no call over it."""
        rank, size = _place_of_process()
        if size > 1 and (rank, size) != (self.rank, self._size):
            raise BackendError(
                f"this session began as rank {self.rank} of {self._size}, and this process is now rank {rank} of "
                f"{size}: each process would run all rows. Call init_process_group before initialize"
            )


def _place_of_process() -> tuple[int, int]:
    """Rank of this process and number of processes of the program."""
    place = launched()
    return (0, 1) if place is None or place.world_size is None else (place.rank, place.world_size)
