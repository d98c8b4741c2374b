"""This process alone; or, under torchrun, all of its processes together, each one rank of every component.

Under torchrun every process runs the same program. A call of a component with a mesh takes this process's share of the
arguments, runs, and exchanges the outcomes, so that every process goes on with the same value.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from twinkle_remote.backends.memory import Memory, seed_process
from twinkle_remote.failure import here
from twinkle_remote.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_mesh import DeviceGroup, DeviceMesh
    from twinkle_remote.backends.exchange import Exchange
    from twinkle_remote.failure import WorkerInfo
    from twinkle_remote.protocol import Outcome, Reply, Task


class LocalReply:
    """An answer that is there, or that another process of this program is about to send."""

    def __init__(self, rank: int, outcome: Outcome | None) -> None:
        self.rank = rank
        self.outcome = outcome

    def done(self) -> bool:
        """Whether the outcome is there."""
        return self.outcome is not None


class LocalGroup:
    """This process as a group of one, or the launched processes as a group of all."""

    def __init__(self, name: str, rank: int, size: int, store: Memory) -> None:
        self._name = name
        self._size = size
        self._rank = rank
        self._worker = Worker(here(name, rank, size), store, live=size == 1, instances=WeakValueDictionary())

    @property
    def name(self) -> str:
        """Name of the group."""
        return self._name

    @property
    def size(self) -> int:
        """Number of processes."""
        return self._size

    def info(self, rank: int) -> WorkerInfo:
        """Who the worker of a rank is."""
        return here(self._name, rank, self._size)

    def submit(self, rank: int, task: Task, inputs: Sequence[Reply]) -> LocalReply:
        """Run the task when the rank is this process; otherwise that process runs it."""
        if rank != self._rank:
            return LocalReply(rank, None)
        outcomes = [reply.outcome for reply in inputs if isinstance(reply, LocalReply) and reply.outcome is not None]
        return LocalReply(rank, self._worker.run(task, outcomes))

    def adopt(self, instance: str, value: object, mesh: DeviceMesh | None) -> bool:
        """Take in a component that was built in this process; False when it cannot be referred to weakly."""
        return self._worker.adopt(instance, value, mesh)

    def stacks(self, ranks: Sequence[int]) -> Mapping[int, str]:
        """Nothing: this process is the one that asks, and others are out of reach."""
        return {}


class LocalBackend:
    """One process, or the processes that torchrun started.

    Args:
        groups: The groups, for their names; every group is this same process or these same processes.
        seed: Seeds this process.
        exchange_timeout: Seconds that a process waits for the others' outcomes of a call.
    """

    def __init__(self, groups: Sequence[DeviceGroup], *, seed: int = 42, exchange_timeout: float = 600.0) -> None:
        seed_process(seed)
        self._rank = int(os.environ.get("RANK", "0")) if "WORLD_SIZE" in os.environ else 0
        self._size = int(os.environ.get("WORLD_SIZE", "1"))
        self._store = Memory()
        self._groups: dict[str, LocalGroup] = {}
        self._exchange: Exchange | None = None
        if self._size > 1:
            from twinkle_remote.backends.exchange import Exchange

            self._exchange = Exchange(self._rank, self._size, exchange_timeout)

    @property
    def store(self) -> Memory:
        """The store of this process."""
        return self._store

    def group(self, name: str) -> LocalGroup:
        """The group of that name; all of them are the same processes."""
        if name not in self._groups:
            self._groups[name] = LocalGroup(name, self._rank, self._size, self._store)
        return self._groups[name]

    def adopt(self, group: str, instance: str, value: object, mesh: DeviceMesh | None) -> bool:
        """Take in a component that was built in this process."""
        return self.group(group).adopt(instance, value, mesh)

    def wait(self, replies: Sequence[Reply], timeout: float | None) -> Sequence[Reply]:
        """Exchange the outcomes of one call with the other processes."""
        mine = [reply for reply in replies if isinstance(reply, LocalReply)]
        missing = [reply for reply in mine if reply.outcome is None]
        if missing and self._exchange is not None:
            own = [reply.outcome for reply in mine if reply.outcome is not None]
            told: dict[int, Any] = self._exchange.all_gather(own[0] if own else None, timeout)
            for reply in missing:
                reply.outcome = told[reply.rank]
        return [reply for reply in mine if reply.outcome is not None]

    def outcome(self, reply: Reply) -> Outcome:
        """The outcome of a reply that is done."""
        assert isinstance(reply, LocalReply) and reply.outcome is not None
        return reply.outcome

    def close(self) -> None:
        """Forget the components."""
        self._groups = {}
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None
