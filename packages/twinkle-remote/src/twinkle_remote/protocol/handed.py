"""Lazy results among the arguments of a call: how their values are combined, and the pieces that each task reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from twinkle_mesh import DeviceMesh


class HandOver(NamedTuple):
    """A lazy result among the arguments: its inputs, and how they are combined into one value.

    Attributes:
        start: Index of its first outcome among the inputs of the call.
        stop: One past its last.
        how: "rows" joins the rows of the outcomes, "list" makes a list of the values, "one" is the single value, and
            any other value is a collect that the consumer applies to all of them.
        mesh: Mesh of the producer, for a callable collect.
        weight: Weight of the producer's reduction.
        padded: The producer padded its rows: only the first `Outcome.total` of the joined rows count.
        once: Indexes of the outcomes that count if the producer's ranks had no rows of their own; None if all
            count.
        split: Each share takes its part of the rows; otherwise it takes the whole value.
        windows: For each outcome, the first row that counts and one past the last; None if all rows count.
        untold: Nothing says whether the elements of a tuple are rows; see `FunctionSpec.untold`.
    """

    start: int
    stop: int
    how: Any
    mesh: DeviceMesh | None = None
    weight: Any = None
    padded: bool = False
    once: tuple[int, ...] | None = None
    split: bool = False
    windows: tuple[tuple[int, int], ...] | None = None
    untold: bool = False


@dataclass(frozen=True, slots=True)
class HandedSlot:
    """Placeholder for a lazy result among the arguments.

    Attributes:
        index: Index among the task's hand-overs.
        split: Take only this rank's share of its rows.
    """

    index: int
    split: bool


class HandedPiece(NamedTuple):
    """A part of a producer's result that a task reads.

    Attributes:
        payload: Payload of the outcome.
        start: First row; None for the whole value.
        stop: One past the last row.
    """

    payload: object
    start: int | None = None
    stop: int | None = None


class HandedValue(NamedTuple):
    """The pieces that make one lazy argument of a task.

    Attributes:
        pieces: In order.
        whole: They are all values of the producer, which the hand-over combines; otherwise they are the task's rows.
        cut: The task's rows are cut out of the combined value, because only that shows how many rows there are.
        rows_given: For each piece of a whole value, the rows that its producer's rank received.
        rows: Rows of the combined value that count; None means all.
        refusal: The reason why the call cannot take this argument; None if it can.
        listing: Payload of the pieces, if they are many and the same for all tasks; None if they are here.
    """

    pieces: tuple[HandedPiece, ...] = ()
    whole: bool = False
    cut: bool = False
    rows_given: tuple[int | None, ...] = ()
    rows: int | None = None
    refusal: str | None = None
    listing: object = None


class HandedShare(NamedTuple):
    """All lazy arguments of one task.

    Attributes:
        values: One for each hand-over of the task.
        total: Rows of the split arguments of the call, before padding or dropping; None if they are not known yet.
        rows: Rows of the lazy arguments that the task takes; None if that is not known yet.
    """

    values: tuple[HandedValue, ...]
    total: int | None = None
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class HandOverPlan:
    """All that is needed, beside the outcomes, to say which pieces each task of a call reads; it is small and plain.

    Attributes:
        name: Class.method of the consumer, for messages.
        handed: The lazy results among the arguments.
        of_share: For each distinct task of the call, the indexes of its hand-overs.
        count: Number of parts that rows are divided into; None when nothing is divided.
        total: Rows of the other split arguments; None without any.
        uneven: The function's `uneven` option.
        lists_only: Only lists among the lazy arguments are split (dispatch "slice").
    """

    name: str
    handed: tuple[HandOver, ...]
    of_share: tuple[tuple[int, ...], ...]
    count: int | None = None
    total: int | None = None
    uneven: str | None = None
    lists_only: bool = False

    def without_collects(self) -> HandOverPlan:
        """The same plan for another process, which does not need the functions and meshes of the producers."""
        plain = (given if given.how in ("rows", "list", "one") else given._replace(how="all") for given in self.handed)
        return replace(self, handed=tuple(given._replace(mesh=None, weight=None) for given in plain))
