"""What is sent to a worker for one call, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinkle_mesh import DeviceMesh
    from twinkle_remote.protocol.failure import Failure

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
        taught: Splitters that the program registered, which the worker learns first; None without any.
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
    taught: Any = None


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
