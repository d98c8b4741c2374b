"""A component that raises and stalls, and exceptions of every kind."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from twinkle_remote import current_worker, remote_class, remote_function

if TYPE_CHECKING:
    from collections.abc import Sequence


@remote_class()
class Faulty:
    """Raises and stalls."""

    def __init__(self, fail_on: int | None = None) -> None:
        if fail_on is not None and current_worker().rank == fail_on:
            raise ValueError(f"no start on rank {fail_on}")
        self.calls = 0

    @remote_function(dispatch="all", collect="first")
    def raises(self, kind: str, ranks: Sequence[int] = (0,)) -> int:
        """Raise an error of a kind on some ranks."""
        self.calls += 1
        if current_worker().rank in ranks:
            raise make_error(kind)
        return self.calls

    @remote_function(dispatch="all")
    def count(self) -> int:
        """Calls of `raises` and `takes` so far."""
        return self.calls

    @remote_function(dispatch="slice_dp", collect="flatten")
    def takes(self, rows: list[int]) -> list[int]:
        """Count a call, and give the rows back."""
        self.calls += 1
        return rows

    @remote_function(dispatch="all")
    def echoes(self, value: str) -> str:
        return value

    @remote_function(dispatch="all")
    def holds(self, value: object) -> bool:
        """Whether a value is a list with a lock in it."""
        return isinstance(value, list) and isinstance(value[0], type(threading.Lock()))

    @remote_function(dispatch="all", lazy_collect=False)
    def gives_lock(self) -> object:
        """A result that cannot be pickled, on the last rank."""
        worker = current_worker()
        return threading.Lock() if worker.rank in (None, worker.world_size - 1) else None

    @remote_function(dispatch="slice_dp", collect="flatten")
    def broken_rows(self, rows: list[int]) -> list[int]:
        if current_worker().rank == 0:
            raise KeyError("row")
        return rows

    @remote_function(dispatch="all", collect="first", timeout=0.3)
    def stalls(self, gate: str, ranks: Sequence[int]) -> str:
        """Hang on some ranks until a gate is opened."""
        return self._stall(gate, ranks)

    @remote_function(dispatch="all", collect="first", timeout=0.3, sync=True)
    def stalls_sync(self, gate: str, ranks: Sequence[int]) -> str:
        return self._stall(gate, ranks)

    @remote_function(dispatch="all", collect="first")
    def stalls_for_ever(self, gate: str, ranks: Sequence[int]) -> str:
        """The same, without a deadline of its own."""
        return self._stall(gate, ranks)

    @remote_function(dispatch="all", collect="first")
    def fails_while_others_wait(self, gate: str) -> str:
        """Rank 1 raises, while the others hang until a gate is opened."""
        if current_worker().rank == 1:
            raise KeyError("first")
        return self._stall(gate, range(current_worker().world_size))

    @remote_function(dispatch="all", collect="none")
    def each_while_others_wait(self, gate: str) -> str:
        """The same, and every rank's result is read."""
        return self.fails_while_others_wait(gate)

    def _stall(self, gate: str, ranks: Sequence[int]) -> str:
        if current_worker().rank in ranks:
            until = time.monotonic() + 20.0
            while not os.path.exists(gate) and time.monotonic() < until:
                time.sleep(0.005)
        return "open"


def make_error(kind: str) -> BaseException:
    """An exception of a kind."""
    errors: dict[str, BaseException] = {
        "key": KeyError("missing"),
        "value": ValueError("bad value"),
        "file": FileNotFoundError(2, "No such file", "weights.pt"),
        "unicode": UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        "group": ExceptionGroup("several", [ValueError("one"), TypeError("two")]),
        "stop": StopIteration("early"),
        "assertion": AssertionError("unequal"),
    }
    return errors[kind]
