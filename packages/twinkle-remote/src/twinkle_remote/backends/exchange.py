"""Exchanges the outcomes of calls between the processes of a launched program, through torch's store."""

from __future__ import annotations

import importlib
import os
import pickle
import socket
import time
import weakref
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from twinkle_remote.errors import CallTimeoutError, TwinkleError

if TYPE_CHECKING:
    from twinkle_remote.protocol.messages import Outcome

_SWEEP = 64
_LONGEST_PAUSE = 0.05  # seconds
_PAUSE_SHARE = 0.05  # of the time that was waited so far


class Exchange:
    """Outcomes by task and rank, in the store that the launcher's MASTER_ADDR and MASTER_PORT name.

    torch.distributed's rendezvous uses the same store. A program that gave its process group the ranks itself, without
    these variables, gets a store of its own. The store is not a process group: components can still create
    the default group. The processes of a program make the same calls in the same order, so that a task has the same
    number in each of them. The process with the task's rank posts the outcome, and the others read it when they need
    it.

    Args:
        rank: Rank of this process.
        size: Number of processes.
        timeout: Seconds to wait for another process if a call has no deadline.
    """

    def __init__(self, rank: int, size: int, timeout: float) -> None:
        distributed: Any = importlib.import_module("torch.distributed")
        self._base = _store(distributed, rank, size, timedelta(seconds=timeout))
        # A store of torchrun's agents outlives a restart. Another one is made for each attempt, and the agents of
        # several hosts count the attempts each in its own way.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if _hosted_by_agents() else "0"
        session = self._base.add(f"twinkle/{attempt}/sessions/{rank}", 1)
        self._store = distributed.PrefixStore(f"twinkle/{attempt}/{session}", self._base)
        self._rank, self._size, self._timeout = rank, size, timeout
        self._count = 0
        self._posted: list[int] = []
        self._unread: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def number(self, reply: Any) -> int:
        """The number of the next task; its outcome stays in the store until this process has read the reply."""
        self._count += 1
        self._unread[self._count] = reply
        if self._count % _SWEEP == 0:
            self._sweep()
        return self._count

    def post(self, number: int, name: str, outcome: Outcome) -> None:
        """Send the outcome of a task of this rank to the other processes."""
        self._posted.append(number)
        self._store.set(str(number), pickle.dumps((name, outcome), protocol=5))

    def read(self, number: int, name: str, rank: int, timeout: float | None) -> Outcome:
        """The outcome of another rank's task.

        Args:
            number: Number of the task.
            name: Class.method, which must be the same in that process.
            rank: Rank of the task.
            timeout: Seconds to wait; None for the limit of this exchange.

        Raises:
            CallTimeoutError: That process did not send the outcome in time.
            TwinkleError: That process made another call.
        """
        seconds = self._timeout if timeout is None else timeout
        if not self._arrives_within(number, seconds):
            raise CallTimeoutError(
                f"rank {self._rank} waited {seconds:g} s for {name} on rank {rank} of {self._size}: the processes of a "
                "program make the same calls in the same order",
                [],
                [rank],
            )
        other, outcome = pickle.loads(self._store.get(str(number)))
        if other != name:
            raise TwinkleError(
                f"rank {self._rank} called {name}, but rank {rank} called {other} in its place: the processes of a "
                "program make the same calls in the same order"
            )
        self._unread.pop(number, None)
        found: Outcome = outcome
        return found

    def _arrives_within(self, number: int, seconds: float) -> bool:
        """Look for an outcome until it is there; the store's own wait sees Ctrl-C only when its time is over."""
        began = time.monotonic()
        while not self.has(number):
            waited = time.monotonic() - began
            if waited >= seconds:
                return False
            time.sleep(min(_LONGEST_PAUSE, waited * _PAUSE_SHARE, seconds - waited))
        return True

    def has(self, number: int) -> bool:
        """Whether another rank's outcome has arrived."""
        return bool(self._store.check([str(number)]))

    def _sweep(self) -> None:
        """Publish how far this process has read, and delete the outcomes that every process has read."""
        self._store.set(f"read/{self._rank}", str(min(self._unread, default=self._count)))
        keys = [f"read/{rank}" for rank in range(self._size)]
        if not self._store.check(keys):
            return
        done = min(int(self._store.get(key)) for key in keys)
        for number in [number for number in self._posted if number < done]:
            self._store.delete_key(str(number))
            self._posted.remove(number)

    def close(self) -> None:
        """Leave the store; the process that hosts it waits for the others, up to a time limit."""
        left = f"left/{self._rank}"
        self._store.set(left, "1")
        if self._rank == 0:
            everyone = [f"left/{rank}" for rank in range(self._size)]
            try:
                self._store.wait(everyone, timedelta(seconds=min(self._timeout, 10.0)))
            except RuntimeError:  # another process ended without leaving the store; there is nothing to send to it
                return


def _hosted_by_agents() -> bool:
    """Whether the launcher's own processes host the store."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _store(distributed: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """The store of the launcher, or one of this program's own process group."""
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing and distributed.is_initialized():
        return _store_of_group(distributed, rank, size, timeout)
    if missing:
        raise TwinkleError(f"WORLD_SIZE={size} is set, but {missing[0]} is not: start the program with torchrun")
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    hosts = rank == 0 and not _hosted_by_agents()
    return distributed.TCPStore(address, port, size, hosts, timeout, multi_tenant=True)


def _store_of_group(distributed: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """A store on the first process, whose address all processes get through their process group."""
    hosts: list[Any] = [None] * size
    distributed.all_gather_object(hosts, socket.gethostname())
    address = "127.0.0.1" if len(set(hosts)) == 1 else hosts[0]
    if rank == 0:
        store = distributed.TCPStore(address, 0, size, True, timeout, wait_for_workers=False)
        distributed.broadcast_object_list([store.port], src=0)
        return store
    port: list[Any] = [None]
    distributed.broadcast_object_list(port, src=0)
    return distributed.TCPStore(address, port[0], size, False, timeout)
