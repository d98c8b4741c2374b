"""The task that a worker receives for one call, and the outcome that it returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from array import array
    from collections.abc import Hashable, Mapping

    from twinkle_mesh import DeviceMesh
    from twinkle_remote.protocol.failure import Failure
    from twinkle_remote.protocol.handed import HandedShare, HandOver
    from twinkle_remote.protocol.spec import CostRule
    from twinkle_remote.protocol.tables import Rows

Kind = Literal["create", "drop", "method", "function", "iterate", "next", "generate", "item", "close", "report"]


class Itself(Enum):
    """Stands for the component in a method's result, such as that of `__enter__`: the caller gets its handle."""

    ITSELF = "itself"


@dataclass(frozen=True, slots=True)
class Share:
    """The part of the rows that a rank takes: part `index` of `count`."""

    index: int
    count: int


class StoredSlot(NamedTuple):
    """Placeholder for rows of a stored value among the arguments.

    Attributes:
        ref: What `Store.put` returned.
        start: First row; None for the whole value, or if `rows` names them.
        stop: One past the last row.
        rows: Numbers of the rows; None for those from `start` to `stop`.
    """

    ref: object
    start: int | None = None
    stop: int | None = None
    rows: Rows | None = None


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Task:
    """The work of one worker in one call; ranks that share their data have the same task.

    Attributes:
        kind: Construct or drop a component, call a method, call `target(instance, *args)`, open or advance an iterator;
            open, advance or close a generator; or wait for `target` seconds for the calls that the worker has made
            itself, and return `OwnCalls`.
        instance: Id of the component within its group.
        name: Class.method, for messages.
        target: The class, the method's name, the function, or the id of a generator ("generate": both name and id).
        args: Positional arguments, with slots for stored and lazy values.
        kwargs: Keyword arguments, with slots likewise.
        slots: Whether the arguments contain slots.
        share: The part of the rows of lazy arguments that these ranks take; None means all rows.
        total: Rows of the split arguments before padding or dropping; None if the caller cannot count them. Lazy
            arguments must have the same number.
        rows: Rows that the caller split off for this task; None if it split nothing.
        balance: How rows are divided: False by their count, else by their costs; see `FunctionSpec`.
        numbers: With `balance`, the numbers of the rows that this task takes; None where the caller does not know them.
        in_order: The numbers come back with the outcome, because its rows are put into the order of the call.
        uneven: The function's `uneven` option, for totals that the number of shares does not divide.
        lists_only: Only lists among the lazy arguments are split (dispatch "slice").
        handed: The lazy results among the arguments.
        pieces: What the task reads of them; None if that is planned from the inputs.
        place: Index of the task among the distinct tasks of its call.
        mesh: The component's mesh ("create" only).
        splitters: Splitters that the program registered; the worker registers them first. None without any.
        on_loop: It runs on the worker's event loop: later tasks do not wait for its end, and it can be cancelled.
        seconds: After so many seconds on the event loop it is cancelled; None for no limit.
        concurrent: It runs at once, on a thread apart from the worker's other tasks, in the order of such tasks.
        columns_unknown: Nothing says whether the elements of a tuple that it returns are rows.
        adds: The columns that the worker keeps of the result, which its caller joins to the argument; None for all.
        masks: The method takes `valid`, the mask of the rows that were repeated to pad its share.
        eager: The caller reads the result at once.
        unchecked: Nobody has looked through lists among the arguments for what has to be refused or replaced.
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
    pieces: HandedShare | None = None
    place: int = 0
    mesh: DeviceMesh | None = None
    splitters: Any = None
    on_loop: bool = False
    seconds: float | None = None
    concurrent: bool = False
    columns_unknown: bool = False
    masks: bool = False
    adds: tuple[Hashable, ...] | None = None
    balance: bool | CostRule = False
    numbers: Rows | None = None
    in_order: bool = False
    eager: bool = False
    unchecked: bool = False


class UncheckedError(Exception):
    """A list that nobody has looked through holds other than plain values."""


@dataclass(slots=True)
class Outcome:
    """The answer of one worker; it is small, and the payload may stay on the worker.

    Attributes:
        rank: Rank of the worker.
        payload: The value, or a reference that `Store.get` reads.
        rows: Rows of the value; None when it has none.
        is_list: The value is a list.
        is_dict: The value is a dict.
        counted: Number of `rows_given` that count in a mean, if a batch marks its fillers (`valid`); None without
            marks.
        numbered: Its rows have numbers from 0, which continue from rank to rank when results are joined.
        whole_columns: Its type holds no marks in place of columns: a function that reads some of them gets all.
        rows_given: Rows of split arguments that this rank received; None when nothing was split.
        numbers: The numbers of these rows in the call, if they do not follow the rank before; None otherwise.
        costs: The cost of each row of the value; None if its type has no costs.
        total: Rows of split arguments of the whole call, before padding or dropping.
        failure: The failure, if there is no value.
        ended: The iterator is at its end.
        produced: Bytes of the payload.
        fetched: Bytes of lazy and stored arguments that this rank fetched.
        fetched_columns: Those of each column, by the text of its name; None without any. The others belong to none.
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
    numbered: bool = False
    whole_columns: bool = False
    counted: int | None = None
    numbers: Rows | None = None
    costs: array[float] | None = None
    fetched_columns: Mapping[str, int] | None = None
    is_dict: bool = False

    @property
    def weighing(self) -> int | None:
        """Rows that weigh in a mean; None when nothing was split."""
        return self.rows_given if self.counted is None or self.rows_given is None else self.counted
