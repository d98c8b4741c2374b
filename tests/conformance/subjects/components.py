"""Components with a state, and components that call others; importable, so that other processes load them too."""

from __future__ import annotations

import os
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

from twinkle_remote import current_worker, get, on, remote_class, remote_function, stats, submit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_mesh import DeviceMesh


@remote_class()
class Counter:
    """State, a property, and methods that are no remote functions."""

    kind = "counter"

    def __init__(self, start: int = 0) -> None:
        self.value = start

    @remote_function(dispatch="all", collect="first")
    def add(self, amount: int = 1) -> int:
        """Count."""
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
        """The value."""
        return self.value

    @property
    def hidden(self) -> int:
        """A property that is not remote."""
        return self.value

    @staticmethod
    def twice(value: int) -> int:
        """A static method."""
        return 2 * value

    @classmethod
    def named(cls) -> str:
        """A class method."""
        return cls.__name__

    def private(self) -> int:
        """A method that is not remote."""
        return self.value

    def __call__(self) -> int:
        """A special method that is not remote."""
        return self.value


@remote_class()
class Writer:
    """Writes in place to what it is given and to what it holds."""

    def __init__(self, value: Any = None) -> None:
        self.value = value

    @remote_function(dispatch="slice_dp", collect="none")
    def writable(self, batch: Any) -> list[bool]:
        """Whether the arrays of a batch can be written to."""
        return [bool(array.flags.writeable) for array in batch["arrays"].values()]

    @remote_function(dispatch="slice_dp", collect="flatten")
    def doubled(self, rows: Any) -> Any:
        """Twice the rows, written in place."""
        rows *= 2
        return rows

    @remote_function(dispatch="all", collect="first")
    def clear(self, batch: Any) -> None:
        """Write zeros to all of a batch."""
        for value in batch.values():
            value[:] = 0

    @remote_function(dispatch="all", collect="first")
    def held(self) -> Any:
        """The value that it holds."""
        return self.value

    @remote_function(dispatch="all", collect="first")
    def add(self, amount: int) -> None:
        """Add to what it holds, in place."""
        for value in self.value.values():
            value += amount


class Holding(Writer):
    """Holds an array and a tensor of its own making."""

    def __init__(self, rows: int) -> None:
        numpy, torch = import_module("numpy"), import_module("torch")
        super().__init__({"array": numpy.zeros(rows), "tensor": torch.zeros(rows)})


@remote_class()
class Caller:
    """Uses another component."""

    def __init__(self, other: Counter, mine: bool = False) -> None:
        self.other = other
        self.own: Counter | None = None
        group = current_worker().group
        if mine and group is not None:
            self.own = on(group).create(Counter, 100)

    @remote_function(dispatch="all", collect="none")
    def call_other(self, amount: int) -> int:
        """Call what the constructor was given."""
        return int(self.other.add(amount))

    @remote_function(dispatch="all", collect="first", execute="first")
    def call_given(self, other: Counter, amount: int) -> int:
        """Call what the call was given."""
        return int(other.add(amount))

    @remote_function(dispatch="all", collect="first", execute="first")
    def calls_made(self, since: float) -> list[tuple[str, str, int, bool]]:
        """The calls of this process since a time: method, group, number of workers, whether it failed."""
        return [(one.method, one.group, one.workers, bool(one.failed)) for one in stats() if one.submitted >= since]

    @remote_function(dispatch="all", collect="first")
    def own_type(self) -> str:
        """The type that was built for the worker's own group, and its count."""
        assert self.own is not None
        return f"{type(self.own).__name__} {self.own.add(1)} {type(self.own) is Counter}"


@remote_class()
class Anywhere:
    """Its functions go to one data rank."""

    @remote_function(dispatch="any", collect="first")
    def rank(self, prompt: str = "") -> int | None:
        """The first rank that runs it."""
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
        """Each rank that runs it."""
        return current_worker().rank

    @remote_function(dispatch="any", collect="flatten")
    def rows(self, rows: list[int]) -> list[int]:
        """The rows, once."""
        return rows

    @remote_function(dispatch="any", collect="first", sticky="key")
    async def sticky(self, key: Any, rows: Sequence[int] = ()) -> int | None:
        """The first rank that runs it."""
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
        """The ranks of some calls by keys."""
        return [get(submit(other.sticky, key)) for key in keys]


@remote_class()
class Placed:
    """Declares the keywords of placement."""

    def __init__(
        self, device_mesh: DeviceMesh | None = None, remote_group: str | None = None, instance_id: str | None = None
    ) -> None:
        self.mesh = device_mesh
        self.group = remote_group
        self.id = instance_id

    @remote_function(collect="first")
    def told(self) -> tuple[Any, ...]:
        """The constructor's arguments, and the worker's context."""
        worker = current_worker()
        sizes = None if self.mesh is None else self.mesh.shape
        return self.group, self.id, sizes, self.mesh == worker.mesh, worker.group, dict(worker.coordinate)
