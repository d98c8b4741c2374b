"""The outcomes of calls, exchanged between the processes of a launched program in lock step, through torch's store.

In each call every process posts its part, and reads those of the others, before it goes on: who posts its part of a
call has read all parts of the call before. What was posted two calls earlier is deleted.
"""

from __future__ import annotations

import importlib
import os
import pickle
import time
import weakref
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from twinkle_remote.errors import CallTimeoutError, TwinkleError
from twinkle_remote.failures.report import CAUSE_SECONDS
from twinkle_remote.protocol.backend import Posted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_remote.protocol.messages import Outcome

_LARGE_BYTES = 64 * 1024  # of a value, which is then read where it is used
_LONGEST_PAUSE = 0.05  # seconds
_PAUSE_SHARE = 0.05  # of the time that was waited so far


class Exchange:
    """The parts of calls by number and rank, in the store that the launcher's MASTER_ADDR and MASTER_PORT name.

    torch.distributed's rendezvous uses the same store. It is not a process group: components can still create the
    default group. The processes of a program make the same calls in the same order, so that a call has the same number
    in each of them.

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
        self._number = self._read = 0
        self._posted: list[int] = []
        self._large: list[int] = []
        self._held: weakref.WeakValueDictionary[str, Posted] = weakref.WeakValueDictionary()

    def trade(
        self, name: str, outcome: Outcome | None, seconds: float | None, began: float
    ) -> Mapping[int, Outcome | None]:
        """Post this process's part of the next call, and read the parts of the others.

        Of a call with a deadline, the first process that has all parts, or whose time is over, decides for all of them
        whether it was late: they go on alike.

        Args:
            name: Class.method, which must be the same in all processes.
            outcome: The outcome of this process's rank; None if it was not called.
            seconds: The call's deadline; None without one.
            began: When the call began, on the monotonic clock.

        Returns:
            The parts by rank: without those that do not come within a second after another one has failed.

        Raises:
            CallTimeoutError: The deadline is over, or a process did not post its part in time.
            TwinkleError: A process made another call.
        """
        self._number += 1
        number, parts, oldest = self._number, {self._rank: outcome}, [self._oldest(self._number)]
        self._post(number, name, outcome)
        waiting = time.monotonic()
        until = waiting + self._timeout if seconds is None else began + seconds
        while missing := [rank for rank in range(self._size) if rank not in parts]:
            here = [rank for rank in missing if self._store.check([f"{number}/{rank}"])]
            for rank in here:
                other, held, part = pickle.loads(self._store.get(f"{number}/{rank}"))
                parts[rank] = part
                oldest.append(held)
                if part is not None and isinstance(part.payload, Posted):
                    part.payload.take = self._value
                    self._held[f"{number}/{rank}"] = part.payload
                if other != name:
                    raise TwinkleError(
                        f"rank {self._rank} called {name}, but rank {rank} called {other} in its place: the processes "
                        "of a program make the same calls in the same order"
                    )
            if _failed(parts):
                until = min(until, time.monotonic() + CAUSE_SECONDS)
                if time.monotonic() >= until:
                    return parts
            if not here and time.monotonic() >= until:
                if seconds is None or self._decide(number, "late") == "late":
                    raise _late(name, self._timeout if seconds is None else seconds, self._size, list(parts))
                until = waiting + self._timeout  # all parts are there: another process has found them
            if not here:  # the store's own wait sees Ctrl-C only when its time is over
                time.sleep(min(_LONGEST_PAUSE, (time.monotonic() - waiting) * _PAUSE_SHARE))
        if seconds is not None and not _failed(parts) and self._decide(number, "in time") == "late":
            raise _late(name, seconds, self._size, list(parts))
        self._read = number
        self._delete(min(oldest))
        return parts

    def _decide(self, number: int, word: str) -> str:
        """The word of the process that says one first; it stays until the parts of the call are deleted."""
        said: bytes = self._store.compare_set(f"{number}/word", "", word)
        return said.decode()

    def _post(self, number: int, name: str, outcome: Outcome | None) -> None:
        if outcome is not None and outcome.produced > _LARGE_BYTES:
            self._store.set(f"{number}/{self._rank}/value", pickle.dumps(outcome.payload, protocol=5))
            self._large.append(number)
            outcome = replace(outcome, payload=Posted(f"{number}/{self._rank}/value"))
        self._store.set(f"{number}/{self._rank}", pickle.dumps((name, self._oldest(number), outcome), protocol=5))
        self._posted.append(number)

    def _value(self, key: str) -> Any:
        return pickle.loads(self._store.get(key))

    def _oldest(self, number: int) -> int:
        """The number of the first call, of which this process may still read a large value."""
        kept = [key for key, value in self._held.items() if value.take is not None]
        return min([int(key.partition("/")[0]) for key in kept], default=number)

    def _delete(self, oldest: int) -> None:
        """Delete what every process has read."""
        for number in [number for number in self._posted if number < self._read - 1]:
            self._store.delete_key(f"{number}/{self._rank}")
            self._store.delete_key(f"{number}/word")
            self._posted.remove(number)
        for number in [number for number in self._large if number < oldest]:
            self._store.delete_key(f"{number}/{self._rank}/value")
            self._large.remove(number)

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


def _failed(parts: Mapping[int, Outcome | None]) -> bool:
    return any(one is not None and one.failure is not None for one in parts.values())


def _late(name: str, seconds: float, size: int, done: Sequence[int]) -> CallTimeoutError:
    missing = [rank for rank in range(size) if rank not in done]
    text = f"ranks {missing} of {size} have not answered" if missing else "an answer came after it"
    return CallTimeoutError(
        f"{name} is not done after {seconds:g} s: {text}. The processes of a program make the same calls in the same "
        "order",
        sorted(done),
        missing,
    )


def _hosted_by_agents() -> bool:
    """Whether the launcher's own processes host the store."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _store(distributed: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """The store of the launcher."""
    if "MASTER_ADDR" not in os.environ or "MASTER_PORT" not in os.environ:
        raise TwinkleError(
            f"this is process {rank} of {size}, but MASTER_ADDR and MASTER_PORT are not set: start the program with "
            "torchrun, or set them to an address and a free port of the first process"
        )
    hosts = rank == 0 and not _hosted_by_agents()
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return distributed.TCPStore(address, port, size, hosts, timeout, multi_tenant=True)
