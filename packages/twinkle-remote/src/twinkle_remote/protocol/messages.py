"""The messages between a caller and its workers: components, calls, tasks, outcomes and failures."""

from __future__ import annotations

import os
import pickle
import socket
import weakref
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, cast

from twinkle_remote.errors import DispatchError

if TYPE_CHECKING:
    from array import array
    from collections.abc import Mapping, Sequence

    from twinkle_mesh import DeviceMesh
    from twinkle_remote.protocol.spec import FunctionSpec
    from twinkle_remote.tables.nodes import Columns, Rows
    from twinkle_remote.tables.transfers import TaskTransfer
    from twinkle_remote.worker.replay import SavedFailures


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """The identity of a worker, for error messages and log lines.

    Attributes:
        group: Name of the group.
        rank: Rank in [0, size - 1].
        size: Number of workers of the group.
        node: Host name of the worker.
        pid: Process id on that host.
    """

    group: str
    rank: int
    size: int
    node: str = ""
    pid: int = 0

    def label(self, coordinate: Mapping[str, int] | None = None) -> str:
        """The short name of the worker: `actor[3/8 dp=1 tp=1]`."""
        place = "".join(f" {dim}={index}" for dim, index in (coordinate or {}).items())
        return f"{self.group}[{self.rank}/{self.size}{place}]"


def here(group: str, rank: int, size: int) -> WorkerInfo:
    """The info of a worker that runs in this process."""
    return WorkerInfo(group, rank, size, socket.gethostname(), os.getpid())


def exception_of(pickled: bytes) -> BaseException:
    """A pickled exception, which is a function and its arguments."""
    make, parts = pickle.loads(pickled)
    return cast("BaseException", make(*parts))


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of one rank, in a form that always pickles.

    Attributes:
        label: The worker, with its coordinate.
        node: Host and pid.
        type_name: Qualified name of the exception's type.
        message: Its text.
        method: Class.method that raised.
        trace: The worker's traceback, user frames only.
        pickled: The pickled exception; empty if it does not pickle.
        died: The worker ended before it answered, and no method raised.
        unanswered: The worker is alive, but its answer is lost: the call may or may not have run.
        upstream: This rank did not run, because the call of one of its arguments failed.
        repeated: An earlier failure has reported this worker's death.
        note: A further line for the caller: where the call was saved; empty without one.
        live: The exception itself, in backends that share the process.
    """

    label: str
    node: str
    type_name: str
    message: str
    method: str = ""
    trace: str = ""
    pickled: bytes = b""
    died: bool = False
    unanswered: bool = False
    upstream: bool = False
    repeated: bool = False
    note: str = ""
    live: BaseException | None = None

    def __reduce__(self) -> tuple[type[Failure], tuple[object, ...]]:
        return Failure, tuple([getattr(self, field.name) for field in fields(self) if field.name != "live"])

    def as_upstream(self) -> Failure:
        """The same failure, for the calls that take the failed result as an argument."""
        return replace(self, upstream=True)

    def exception(self) -> BaseException | None:
        """The exception that the worker raised; None if it could not be pickled."""
        if self.live is not None:
            return self.live
        if not self.pickled:
            return None
        try:
            return exception_of(self.pickled)
        except Exception:  # the type may not be importable here: the text remains
            return None


COMPONENT = "_twinkle_component"
REMOTE = "__twinkle_remote__"


@dataclass(frozen=True, slots=True)
class Component:
    """The identity of a component, which its handles carry.

    Attributes:
        group: Name of the group.
        instance: Id within the group.
        name: Name of the class.
        ranks: Ranks that hold it, ascending.
        mesh: Its mesh, or None.
    """

    group: str
    instance: str
    name: str
    ranks: tuple[int, ...]
    mesh: DeviceMesh | None

    @property
    def key(self) -> tuple[str, str]:
        """Its group and id: they name the same component, whichever of its ranks."""
        return self.group, self.instance


class HandleBase:
    """Base of the handle classes only."""

    __slots__ = ()


# Kept outside of the objects: a copy of a component is not a component, and a class may have slots.
_in_process: dict[int, tuple[weakref.ref[object], Component]] = {}


def remember(value: object, component: Component) -> None:
    """Record that an object of this process is a component, until the object is deleted."""
    key = id(value)

    known = _in_process  # the name of a module is None when the interpreter ends
    known[key] = weakref.ref(value, lambda _: known.pop(key, None)), component


def forget_all() -> None:
    """Make the components of this process plain objects again, as `shutdown` does."""
    _in_process.clear()


def components_here() -> dict[int, object]:
    """The objects of this process that are components, by their ids."""
    found = {key: ref() for key, (ref, _) in list(_in_process.items())}
    return {key: value for key, value in found.items() if value is not None}


def component_of(value: object) -> Component | None:
    """The component of a handle, or of an object that was built in this process; None for other values."""
    if is_handle(value):
        return cast("Component", object.__getattribute__(value, COMPONENT))
    entry = _in_process.get(id(value))
    return entry[1] if entry is not None and entry[0]() is value else None


def is_handle(value: object) -> bool:
    """Whether a value is a handle and not the component itself."""
    return issubclass(type(value), HandleBase)


def is_component_type(kind: type) -> bool:
    """Whether a class is a remote class; its objects and handles are never split as data."""
    return getattr(kind, REMOTE, None) is not None


@dataclass(frozen=True, slots=True)
class Call:
    """One remote call.

    Attributes:
        kind: Kind of its tasks.
        component: The component; only its ranks are called.
        target: The class, the method's name, or the function; see `Task`.
        name: Class.method, for messages.
        spec: Options of the function; its timeout is the call's deadline, in seconds from when it was sent.
        line: File and line of the caller.
        names: Parameter names of the positional arguments, for `split`, `replicate` and messages.
        args: Positional arguments, with marks and lazy results inside; never mutated.
        kwargs: Keyword arguments likewise.
        own_share: The caller is one of the ranks: a batch marked `sharded` is its share already, and goes whole.
        reads_ranks: The caller reads the outcome of each rank by itself, not the collected value.
        eager: The caller waits for the value and reads it at once.
        seed: What the generators are seeded with before a constructor; None for other calls.
    """

    kind: Kind
    component: Component
    target: Any
    name: str
    spec: FunctionSpec
    line: str
    names: Sequence[str] = ()
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    own_share: bool = False
    reads_ranks: bool = False
    eager: bool = False
    seed: int | None = None

    @property
    def ranks(self) -> Sequence[int]:
        """The called ranks, ascending."""
        return self.component.ranks[:1] if self.spec.execute == "first" else self.component.ranks

    @property
    def mesh(self) -> DeviceMesh | None:
        """Mesh of the component, or None."""
        return self.component.mesh

    def without_arguments(self) -> Call:
        """The same call, to keep while its result is there: the arguments were sent, and need not stay."""
        return replace(self, names=(), args=(), kwargs={}) if self.args or self.kwargs else self

    def label(self, worker: WorkerInfo) -> str:
        """The short name of a worker, with its coordinate on the mesh."""
        mesh = self.component.mesh
        return worker.label(mesh.coordinate(worker.rank) if mesh and worker.rank in mesh else None)

    def where(self) -> str:
        """Group, number of called workers, and the mesh: `actor[8] dp=2 tp=4`."""
        mesh = self.component.mesh
        dims = () if mesh is None else zip(mesh.dim_names, mesh.shape, strict=True)
        return " ".join([f"{self.component.group}[{len(self.ranks)}]", *(f"{dim}={size}" for dim, size in dims)])


MAX_IN_FLIGHT = 1024


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


Kind = Literal["create", "drop", "method", "function", "beside", "iterate", "next"]


class Itself(Enum):
    """Stands for the component in a method's result, such as that of a builder: the caller gets its handle."""

    ITSELF = "itself"


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


@dataclass(frozen=True, slots=True)
class Task:
    """The work of one worker in one call; ranks that share their data have the same task.

    Attributes:
        kind: Construct or drop a component, call a method, call `target(instance, *args)` ("beside" at once, on a
            thread apart from the worker's other tasks, in the order of such tasks), or open or advance an iterator.
        instance: Id of the component within its group.
        name: Class.method, for messages.
        target: The class, the method's name, or the function.
        args: Positional arguments, with slots for stored and lazy values.
        kwargs: Keyword arguments, with slots likewise.
        slots: Whether the arguments contain slots.
        share: The part of the rows of lazy arguments that these ranks take, and the number of parts; None for all rows.
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
        eager: The caller reads the result at once.
    """

    kind: Kind
    instance: str
    name: str
    target: Any
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    slots: bool = False
    share: tuple[int, int] | None = None
    total: int | None = None
    rows: int | None = None
    reads: TaskTransfer | None = None
    place: int = 0
    mesh: DeviceMesh | None = None
    seed: int | None = None
    on_loop: bool = False
    seconds: float | None = None
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
