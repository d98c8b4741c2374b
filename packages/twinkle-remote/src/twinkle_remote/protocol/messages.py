"""The messages between a caller and its workers: tasks, outcomes, and the defaults of a session."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

from twinkle_remote.errors import DispatchError

if TYPE_CHECKING:
    from array import array
    from collections.abc import Mapping

    from twinkle_mesh import DeviceMesh
    from twinkle_remote.protocol.failure import Failure
    from twinkle_remote.tables.nodes import Columns, Rows
    from twinkle_remote.tables.transfers import TaskTransfer

MAX_IN_FLIGHT = 1024


@dataclass(frozen=True, slots=True)
class SavedFailures:
    """Where workers save calls that fail, and what a process needs to run them again.

    Attributes:
        folder: Absolute path, on each worker's node.
        seed: The session's.
        main: Path of the program; empty where it has none.
        argv: Arguments of its command line.
        paths: Directories of the program's modules.
    """

    folder: str
    seed: int
    main: str
    argv: tuple[str, ...]
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SessionDefaults:
    """The defaults of a session, the same in the program and on its workers.

    Attributes:
        lazy_collect: Whether results are lazy where the function does not say.
        max_in_flight: Calls that one caller may have in flight in one group, at or above 1.
        saving: Where calls that fail are saved; None saves none.
    """

    lazy_collect: bool = True
    max_in_flight: int = MAX_IN_FLIGHT
    saving: SavedFailures | None = None


Kind = Literal["create", "drop", "method", "function", "iterate", "next"]


class Itself(Enum):
    """Stands for the component in a method's result, such as that of a builder: the caller gets its handle."""

    ITSELF = "itself"


@dataclass(frozen=True, slots=True)
class Share:
    """The part of the rows that a rank takes: part `index` of `count`."""

    index: int
    count: int


@dataclass(frozen=True, slots=True)
class Replicated:
    """An argument, or a part of one, that goes whole.

    Attributes:
        value: What the method receives.
    """

    value: object

    def __reduce__(self) -> NoReturn:
        raise DispatchError("Replicate(value) marks an argument, or a part of one, and nothing within a row")


class StoredSlot(NamedTuple):
    """Placeholder for rows of a stored value among the arguments.

    Attributes:
        ref: What `Store.put` returned.
        rows: Numbers of the rows; None for the whole value.
    """

    ref: object
    rows: Rows | None = None


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Task:
    """The work of one worker in one call; ranks that share their data have the same task.

    Attributes:
        kind: Construct or drop a component, call a method, call `target(instance, *args)`, or open or
            advance an iterator.
        instance: Id of the component within its group.
        name: Class.method, for messages.
        target: The class, the method's name, or the function.
        args: Positional arguments, with slots for stored and lazy values.
        kwargs: Keyword arguments, with slots likewise.
        slots: Whether the arguments contain slots.
        share: The part of the rows of lazy arguments that these ranks take; None means all rows.
        total: Rows of the split arguments; None if the caller cannot count them.
        rows: Rows that the caller split off for this task; None if it split nothing.
        numbers: With `balance`, the numbers of the rows that this task takes; None where the caller does not know them.
        in_order: The numbers come back with the outcome, because its rows are put into the order of the call.
        reads: What the task reads of its lazy arguments; None where it has none, or that is planned when their calls
            are done.
        place: Index of the task among the distinct tasks of its call.
        mesh: The component's mesh ("create" only).
        seed: What the generators are seeded with first ("create" only); None leaves them as they are.
        on_loop: It runs on the worker's event loop: later tasks do not wait for its end, and it can be cancelled.
        seconds: The call's deadline: after so many seconds on the event loop it is cancelled; None for no limit.
        concurrent: It runs at once, on a thread apart from the worker's other tasks, in the order of such tasks.
        eager: The caller reads the result at once.
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
    reads: TaskTransfer | None = None
    place: int = 0
    mesh: DeviceMesh | None = None
    seed: int | None = None
    on_loop: bool = False
    seconds: float | None = None
    concurrent: bool = False
    numbers: Rows | None = None
    in_order: bool = False
    eager: bool = False


@dataclass(slots=True)
class Outcome:
    """The answer of one worker; it is small, and the payload may stay on the worker.

    Attributes:
        rank: Rank of the worker.
        payload: The value, or a reference that `Store.get` reads.
        rows: Rows of the value; None when it has none.
        is_list: The value is a list.
        columns: The names of its columns, of a mapping or a type that has columns; None for everything else.
        counted: Number of `rows_given` that count in a mean, if a batch marks its fillers (`valid`); None without
            marks.
        rows_given: Rows of split arguments that this rank received; None when nothing was split.
        numbers: The numbers of these rows in the call, if they do not follow the rank before; None otherwise.
        costs: The cost of each row of the value; None if its type has no costs.
        total: Rows of split arguments of the whole call.
        failure: The failure, if there is no value.
        ended: The iterator is at its end.
        produced: Bytes of the payload.
        fetched: Bytes of lazy and stored arguments that this rank fetched.
        started: Start of the method, in seconds of the worker's wall clock.
        seconds: Duration of the method.
        fetch_seconds: Time that fetching the arguments took before the method began.
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
    counted: int | None = None
    numbers: Rows | None = None
    costs: array[float] | None = None
    columns: Columns | None = None

    @property
    def weighing(self) -> int | None:
        """Rows that weigh in a mean; None when nothing was split."""
        return self.rows_given if self.counted is None or self.rows_given is None else self.counted
