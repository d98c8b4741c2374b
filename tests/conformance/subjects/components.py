"""Components with a state, and components that call others; importable, so that other processes load them too."""

from __future__ import annotations

import os
import time
import weakref
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tests.conformance.subjects.echo import data_rank

from twinkle_remote import current_worker, get, remote_class, remote_function, submit

if TYPE_CHECKING:
    from collections.abc import Sequence


@remote_class()
class Counter:
    """State, a property, and methods that are no remote functions."""

    kind = "counter"

    def __init__(self, start: int = 0) -> None:
        self.value = start

    @remote_function(dispatch="all", collect="first")
    def add(self, amount: int = 1) -> int:
        self.value += amount
        return self.value

    @remote_function(dispatch="all", collect="first")
    def itself(self) -> Counter:
        """The component, as builders return it."""
        return self

    @remote_function(dispatch="all")
    def where(self) -> tuple[Any, ...]:
        """Group, rank, size and coordinate of each worker."""
        worker = current_worker()
        return worker.group, worker.rank, worker.world_size, dict(worker.coordinate)

    @property
    @remote_function(dispatch="all", collect="first")
    def current(self) -> int:
        return self.value

    @property
    def hidden(self) -> int:
        return self.value

    @staticmethod
    def twice(value: int) -> int:
        return 2 * value

    @classmethod
    def named(cls) -> str:
        return cls.__name__

    def private(self) -> int:
        return self.value

    def __call__(self) -> int:
        """A special method that is not remote."""
        return self.value


@remote_class()
class Writer:
    """Writes in place to what it is given."""

    @remote_function(dispatch="slice_dp", collect="none")
    def writable(self, batch: Any) -> list[bool]:
        """Whether the arrays of a batch can be written to."""
        return [bool(array.flags.writeable) for array in batch["arrays"].values()]

    @remote_function(dispatch="slice_dp", collect="flatten")
    def doubled(self, rows: Any) -> Any:
        rows *= 2
        return rows

    @remote_function(dispatch="all", collect="first")
    def clear(self, batch: Any) -> None:
        for value in batch.values():
            value[:] = 0


@remote_class()
class Holding:
    """Holds an array and a tensor of its own making, and writes to them."""

    def __init__(self, rows: int) -> None:
        numpy, torch = import_module("numpy"), import_module("torch")
        self.value = {"array": numpy.zeros(rows), "tensor": torch.zeros(rows)}

    @remote_function(dispatch="all", collect="first")
    def held(self) -> Any:
        return self.value

    @remote_function(dispatch="all", collect="first")
    def add(self, amount: int) -> None:
        for value in self.value.values():
            value += amount


@remote_class()
class Caller:
    """Uses another component."""

    def __init__(self, other: Counter) -> None:
        self.other = other

    @remote_function(dispatch="all", collect="none")
    def call_other(self, amount: int) -> int:
        """Call what the constructor was given."""
        return int(self.other.add(amount))

    @remote_function(dispatch="all", collect="first", execute="first")
    def call_given(self, other: Counter, amount: int) -> int:
        return int(other.add(amount))


@remote_class()
class Anywhere:
    """Its functions go to one data rank."""

    @remote_function(dispatch="any", collect="first")
    def rank(self, prompt: str = "") -> int | None:
        return current_worker().rank

    @remote_function(dispatch="any", collect="first")
    def held(self, gate: str) -> int | None:
        """The first rank that runs it, once a gate is open."""
        until = time.monotonic() + 60.0
        while not os.path.exists(gate) and time.monotonic() < until:
            time.sleep(0.005)
        return current_worker().rank

    @remote_function(dispatch="any")
    def peers(self) -> int | None:
        return current_worker().rank

    @remote_function(dispatch="any", collect="flatten")
    def rows(self, rows: list[int]) -> list[int]:
        return rows

    @remote_function(dispatch="any", collect="first", sticky="key")
    async def sticky(self, key: Any, rows: Sequence[int] = ()) -> int | None:
        return current_worker().rank


@remote_class()
class Prompter:
    """Calls a component whose functions go anywhere."""

    @remote_function(dispatch="all")
    def prompts(self, other: Anywhere, count: int) -> list[int | None]:
        """The ranks of some calls, one after the other."""
        return [get(other.rank("prompt")) for _ in range(count)]

    @remote_function(dispatch="all")
    def sticks(self, other: Anywhere, keys: list[Any]) -> list[int | None]:
        return [get(submit(other.sticky, key)) for key in keys]


class Weights:
    """Weights of a component; they support weak references."""


_held: dict[str, weakref.ref[Weights]] = {}


@remote_class()
class Holder:
    """Holds weights, in a cycle.

    Args:
        name: Name of the weights in its process.
    """

    def __init__(self, name: str) -> None:
        self.weights = Weights()
        self.itself = self
        _held[name] = weakref.ref(self.weights)

    @remote_function(dispatch="all", collect="first")
    def rows(self, rows: list[int]) -> list[int]:
        return rows

    @remote_function(dispatch="all")
    def holds(self, name: str) -> bool:
        """Whether the weights of that name are still there in this process."""
        return _held[name]() is not None


@remote_class()
class Numbers:
    """An iterator of its own: its `__iter__` only returns it."""

    def __init__(self, stop: int) -> None:
        self.at = 0
        self.stop = stop

    def __iter__(self) -> Numbers:
        return self

    def __next__(self) -> list[int]:
        if self.at >= self.stop:
            raise StopIteration
        self.at += 1
        return [10 * self.at + data_rank()]

    def __len__(self) -> int:
        return self.stop - self.at
