"""Lazy results among the arguments of a call: how their values are combined, and the pieces that each task reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twinkle_mesh import DeviceMesh
    from twinkle_remote.protocol.spec import CostRule
    from twinkle_remote.protocol.tables import Columns, Node, Rows


class HandOver(NamedTuple):
    """A lazy result among the arguments: its inputs, and how they are combined into one value.

    Attributes:
        start: Index of its first outcome among the inputs of the call.
        stop: One past its last.
        how: "rows" joins the rows of the outcomes, "list" makes a list of the values, "one" is the single value,
            "table" is what the plan makes of the parts, and any other value is a collect that the consumer applies to
            all of them.
        mesh: Mesh of the producer, for a callable collect.
        weight: Weight of the producer's reduction.
        padded: The producer padded its rows: only the first `Outcome.total` of the joined rows count.
        once: Indexes of the outcomes that count if the producer's ranks had no rows of their own; None if all
            count.
        split: Each share takes its part of the rows; otherwise it takes the whole value.
        windows: For each outcome, the first row that counts and one past the last; None if all rows count.
        columns_unknown: Nothing says whether the elements of a tuple are rows; see `FunctionSpec.columns_unknown`.
        table: The plan of a table; None for everything else.
        parts: The lazy results of a table, whose outcomes are among those from `start` to `stop`.
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
    columns_unknown: bool = False
    table: Node | None = None
    parts: tuple[HandOver, ...] = ()

    def without_collect(self) -> HandOver:
        """The same for a process that only plans: without the functions and meshes of the producers."""
        how = self.how if self.how in ("rows", "columns", "list", "one", "table") else "all"
        parts = tuple([part.without_collect() for part in self.parts])
        return self._replace(how=how, mesh=None, weight=None, parts=parts)


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
        start: First row; None for the whole value, or if `rows` names them.
        stop: One past the last row.
        rows: The rows, each once and ascending; None for those from `start` to `stop`.
        columns: Those that the reader wants; None for all.
    """

    payload: object
    start: int | None = None
    stop: int | None = None
    rows: Rows | None = None
    columns: Columns | None = None

    def length(self) -> int | None:
        """Its number of rows; None where it is a whole value."""
        if self.rows is not None:
            return len(self.rows)
        return None if self.start is None or self.stop is None else self.stop - self.start


class HandedValue(NamedTuple):
    """The pieces that make one lazy argument of a task.

    Attributes:
        pieces: In order.
        whole: They are all values of the producer, which the hand-over combines; otherwise they are the task's rows.
        cut: The task's rows are cut out of the combined value, because only that shows how many rows there are.
        rows_given: For each piece of a whole value, the rows that its producer's rank received.
        numbers: For each piece of a whole value, the numbers of these rows in the producer's call; empty where its rows
            follow each other from rank to rank.
        rows: Rows of the combined value that count; None means all.
        refusal: The type and the text of the error that the call cannot take this argument; None if it can.
        listing: Payload of the pieces, if they are many and the same for all tasks; None if they are here.
        parts: The values of a table's parts, in place of pieces: its rows are theirs, joined.
        layers: The values whose columns are joined, in place of pieces.
        order: For each row, its place among those that the pieces, or the parts, give; None where they are the same.
        columns: Those that are kept of the joined rows; None for all.
        scattered: The rows of all tasks do not follow each other: a range of labels in the part of one is no sign of a
            new frame, and a range of numbers becomes a list.
    """

    pieces: tuple[HandedPiece, ...] = ()
    whole: bool = False
    cut: bool = False
    rows_given: tuple[int | None, ...] = ()
    rows: int | None = None
    refusal: tuple[type[Exception], str] | None = None
    listing: object = None
    parts: tuple[HandedValue, ...] = ()
    order: tuple[int, ...] | None = None
    columns: Columns | None = None
    numbers: tuple[Rows, ...] = ()
    layers: tuple[HandedValue, ...] = ()
    scattered: bool = False

    def all_pieces(self) -> Iterator[HandedPiece]:
        """Its pieces, and those of its parts."""
        yield from self.pieces
        for part in (*self.parts, *self.layers):
            yield from part.all_pieces()


class HandedShare(NamedTuple):
    """All lazy arguments of one task.

    Attributes:
        values: One for each hand-over of the task.
        total: Rows of the split arguments of the call, before padding or dropping; None if they are not known yet.
        rows: Rows of the lazy arguments that the task takes; None if that is not known yet.
        numbers: The numbers of these rows, if they are divided by their costs; None otherwise.
    """

    values: tuple[HandedValue, ...]
    total: int | None = None
    rows: int | None = None
    numbers: Rows | None = None


@dataclass(frozen=True, slots=True)
class HandOverPlan:
    """All that is needed, with the outcomes, to say which pieces each task of a call reads; it is small and plain.

    Attributes:
        name: Class.method of the consumer, for messages.
        handed: The lazy results among the arguments.
        of_share: For each distinct task of the call, the indexes of its hand-overs.
        count: Number of parts that rows are divided into; None when nothing is divided.
        total: Rows of the other split arguments; None without any.
        uneven: The function's `uneven` option.
        lists_only: Only lists among the lazy arguments are split (dispatch "slice").
        balance: How rows are divided: False by their count, else by their costs; see `FunctionSpec`.
        numbers: The rows of each share, if the caller has divided them by their costs; None otherwise.
    """

    name: str
    handed: tuple[HandOver, ...]
    of_share: tuple[tuple[int, ...], ...]
    count: int | None = None
    total: int | None = None
    uneven: str | None = None
    lists_only: bool = False
    balance: bool | CostRule = False
    numbers: tuple[Rows, ...] | None = None

    def without_collects(self) -> HandOverPlan:
        """The same plan for another process, which does not need the functions and meshes of the producers."""
        return replace(self, handed=tuple([given.without_collect() for given in self.handed]))
