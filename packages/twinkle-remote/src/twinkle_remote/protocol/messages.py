"""The contract between the call path and a backend: what is sent to a worker, and what comes back.

A backend owns groups of workers. It takes one `Task` for each called rank, has the worker's
`twinkle_remote.worker.worker.Worker` run it, and hands back a `Reply` for each. Everything else (what is split, what is
collected, what an error says) is the same for all of them and lives above this line. `twinkle_remote.conformance` is
the executable form of this page.

A third party's backend is a class with this interface, registered under the entry-point group `twinkle.backends`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_mesh import DeviceGroup, DeviceMesh
    from twinkle_remote.failures.capture import Failure, WorkerInfo

Kind = Literal["create", "drop", "method", "function", "iterate", "next"]


class Itself(Enum):
    """Stands for the component when a method returns it, as `__enter__` does: the caller's handle stays the handle."""

    ITSELF = "itself"


@dataclass(frozen=True, slots=True)
class Share:
    """Which part of the rows a rank takes: part `index` of `count`."""

    index: int
    count: int


class HandOver(NamedTuple):
    """A lazy result among the arguments: which of the task's inputs it is made of, and how they make one value.

    Attributes:
        start: Index of its first outcome among the inputs of the task.
        stop: One past its last.
        how: "rows" joins the outcomes' rows, "list" makes a list of the values, "one" is the single value, and
            anything else is a collect that the consumer applies to all of them.
        mesh: Mesh of the producer, for a callable collect.
        weight: Weight of the producer's reduction.
        padded: The producer padded its rows, so that of the joined rows only `Outcome.total` count.
        once: Which of its outcomes count where the producer's ranks were given no rows of their own, as indexes among
            them; None where all do.
    """

    start: int
    stop: int
    how: Any
    mesh: DeviceMesh | None = None
    weight: Any = None
    padded: bool = False
    once: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class HandedSlot:
    """Stands in the arguments where a lazy result goes.

    Attributes:
        index: Index among the task's hand-overs.
        split: Take only this rank's share of its rows.
    """

    index: int
    split: bool


class StoredSlot(NamedTuple):
    """Stands in the arguments where rows of a stored value go.

    Attributes:
        ref: What `Store.put` returned.
        start: First row; None for the whole value.
        stop: One past the last row.
    """

    ref: object
    start: int | None = None
    stop: int | None = None


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Task:
    """What one worker is asked to do; equal for ranks that share their data.

    Attributes:
        kind: Construct or drop a component, call a method, call `target(instance, *args)`, open or advance an iterator.
        instance: Id of the component within its group.
        name: Class.method, for messages.
        target: The class, the method's name, or the function.
        args: Positional arguments, with slots where values are stored or handed over.
        kwargs: Keyword arguments, likewise.
        slots: There are slots among the arguments.
        share: The part of the rows of handed-over values that these ranks take; None means all rows.
        total: Rows of the split arguments before padding or dropping, where the caller knows; lazy ones must agree.
        rows: Rows among the arguments that were split by the caller; None when nothing was.
        uneven: What the function says of totals that the share's count does not divide.
        lists_only: Of handed-over values only lists are split (dispatch "slice").
        handed: The lazy results among the arguments.
        mesh: The component's mesh ("create" only).
    """

    kind: Kind
    instance: str
    name: str
    target: Any
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    slots: bool = False
    share: Share | None = None
    total: int | None = None
    rows: int | None = None
    uneven: str | None = None
    lists_only: bool = False
    handed: tuple[HandOver, ...] = ()
    mesh: DeviceMesh | None = None


@dataclass(slots=True)
class Outcome:
    """What one worker answers: small, so that the driver may read it; the payload may stay where it was made.

    Attributes:
        rank: Rank of the worker.
        payload: The value, or what `Store.get` turns into it.
        rows: Rows of the value; None when it has none.
        is_list: The value is a list.
        rows_given: Rows of split arguments that this rank was given; None when nothing was split.
        total: Rows of split arguments that the call was given in all, before padding or dropping.
        failure: Why there is no value.
        ended: The iterator is at its end.
        produced: Bytes of the payload.
        fetched: Bytes of handed-over and stored arguments that this rank fetched.
        started: When the method began, in seconds of the worker's wall clock.
        seconds: How long it ran.
        fetch_seconds: How long fetching its arguments took before that.
    """

    rank: int
    payload: object = None
    rows: int | None = None
    is_list: bool = False
    rows_given: int | None = None
    total: int | None = None
    failure: Failure | None = None
    ended: bool = False
    produced: int = 0
    fetched: int = 0
    started: float = 0.0
    seconds: float = 0.0
    fetch_seconds: float = 0.0


class Store(Protocol):
    """Where values live between workers; on one process simply the values themselves."""

    def put(self, value: object) -> tuple[object, int] | None:
        """Store a large value once for many readers.

        Returns:
            What stands for it, and the bytes stored; None to send the value along with the task instead.
        """

    def get(self, ref: object, start: int | None = None, stop: int | None = None) -> tuple[Any, int]:
        """A stored value, or rows [start, stop) of it.

        Returns:
            The value, and the bytes that this took from outside of the process.
        """

    def keep(self, value: object) -> tuple[object, int]:
        """Keep a method's result for later readers.

        Returns:
            The payload of its outcome, and the bytes it holds.
        """


class Reply(Protocol):
    """The pending answer of one worker; hashable by identity.

    Attributes:
        rank: Rank of the worker.
        sent: Bytes that went to the worker with its task, small arguments among them; 0 where all share a process.
    """

    rank: int
    sent: int

    def done(self) -> bool:
        """Whether the outcome is there, or never will be."""


class WorkerGroup(Protocol):
    """The workers of one `DeviceGroup`, in rank order."""

    @property
    def name(self) -> str:
        """Name of the group."""

    @property
    def size(self) -> int:
        """Number of workers."""

    def info(self, rank: int) -> WorkerInfo:
        """Who the worker of a rank is."""

    def submit(self, rank: int, task: Task, inputs: Sequence[Reply]) -> Reply:
        """Have one worker run a task after everything that it was given before; returns at once.

        Args:
            rank: Rank in [0, size - 1].
            task: The task. Ranks that share their data are given the same object, one after the other.
            inputs: Replies whose outcomes the task's hand-overs are made of; awaited on the worker.
        """

    def stacks(self, ranks: Sequence[int]) -> Mapping[int, str]:
        """Where the given ranks are, as text by rank; ranks that cannot tell are left out."""


class CarefulGroup(Protocol):
    """What a group has beside `WorkerGroup` when its tasks may turn out not to be sendable."""

    def prepare(self, tasks: Sequence[Task]) -> None:
        """Make sure that all tasks of one call can be sent, before the first one is.

        Raises:
            DispatchError: One cannot; no rank has heard of the call.
        """


class Backend(Protocol):
    """Groups of workers, and what is needed to wait for them."""

    @property
    def store(self) -> Store:
        """The store that this process reads and writes."""

    def group(self, name: str) -> WorkerGroup:
        """A group by name.

        Raises:
            PlacementError: There is none of that name; the message lists those that exist.
        """

    def wait(self, replies: Sequence[Reply], timeout: float | None) -> Sequence[Reply]:
        """Wait until at least one reply is done.

        Args:
            replies: At least one.
            timeout: Seconds, 0 to poll; None waits without a limit.

        Returns:
            Those that are done; empty when the time is over.
        """

    def outcome(self, reply: Reply) -> Outcome:
        """The outcome of a reply that is done; a lost worker is an outcome with a failure, never an exception."""

    def close(self) -> None:
        """End every worker and give everything back; safe twice."""


class BackendFactory(Protocol):
    """What an entry point of `twinkle.backends` names: called with the groups and the options of `initialize`."""

    def __call__(self, groups: Sequence[DeviceGroup], *, seed: int, **options: Any) -> Backend:
        """Start the groups; every worker is ready when it returns."""


@runtime_checkable
class InProcessBackend(Protocol):
    """A backend that builds components in the calling process, which is itself one of their ranks.

    Attributes:
        own_group: Name of the group of components that are this process's alone: they have neither group nor mesh.
    """

    own_group: str

    @property
    def rank(self) -> int:
        """Rank of the calling process."""

    def adopt(self, group: str, instance: str, value: object, mesh: DeviceMesh | None) -> bool:
        """Take in a component that was built in this process; False when it cannot be referred to weakly."""
