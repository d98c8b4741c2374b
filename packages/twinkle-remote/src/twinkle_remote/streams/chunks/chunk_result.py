"""The result of a stage for a chunk: rows that stay with the rank that made them, or a value of this process."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from twinkle_remote.call.lazy_values.assembled import ResultRows, assemble
from twinkle_remote.call.lazy_values.lazy import Lazy, hand_over
from twinkle_remote.call.tables import table_operations as tables
from twinkle_remote.call.tables.table import is_table
from twinkle_remote.values.join import join
from twinkle_remote.values.rows import rows_of, take

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from twinkle_remote.call.pending.pending_call import PendingCall
    from twinkle_remote.protocol.component import Component
    from twinkle_remote.protocol.messages import Outcome

_ALL = sys.maxsize


class Layer(NamedTuple):
    """Columns of rows, and where they are.

    Attributes:
        names: The columns that a stage has added; None for those of whole rows.
        parts: Rows of calls, and values, one after the other.
    """

    names: tuple[Hashable, ...] | None
    parts: list[Any]


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """Rows that a stage made.

    Attributes:
        call: The call whose result they are; None for a value of this process.
        ranks: The ranks that hold them, in order.
        value: The value, where there is no call.
        offset: Index of the chunk's first row in the result.
        component: The component whose ranks hold them; None for a value of this process.
        adds: The columns that the stage has added, which alone are in its result; None for whole rows.
        rows_before: The rows that it was given, and adds columns to: each result with its rows from its offset on.
    """

    call: PendingCall | None
    ranks: tuple[int, ...] = ()
    value: Any = None
    offset: int = 0
    component: Component | None = None
    adds: tuple[Hashable, ...] | None = None
    rows_before: tuple[tuple[ChunkResult, int], ...] = ()

    def rows(self) -> int | None:
        """Rows of the whole result; None if it has none."""
        if self.call is None:
            return rows_of(self.value, "the result of a stage")
        total = 0
        for rank in self.ranks:
            outcome = self.call.outcome(rank)
            if outcome.rows is None:
                return None
            total += outcome.rows
        padded = self.call.spec.uneven == "pad" and len(self.ranks) > 1  # the last rows are repeated ones
        given = self.call.outcome(self.ranks[0]).total if padded else None
        return total if given is None else min(total, given)

    def payloads(self) -> Sequence[object]:
        """Where the rows of a call are stored."""
        assert self.call is not None, "a value of this process is not stored"
        return [self.call.outcome(rank).payload for rank in self.ranks]

    def pieces(self, start: int, stop: int) -> list[ResultRows]:
        """Where rows [start, stop) of a call are; an empty piece if these are none."""
        assert self.call is not None, "a value of this process is not stored"
        if len(self.ranks) == 1:
            return [ResultRows(self.call, self.ranks[0], start, stop)]
        found: list[ResultRows] = []
        position = 0
        for rank in self.ranks:
            rows = self.call.outcome(rank).rows or 0
            begin, end = max(start - position, 0), min(stop - position, rows)
            if begin < end:
                found.append(ResultRows(self.call, rank, begin, end))
            position += rows
        return found or [ResultRows(self.call, self.ranks[0], 0, 0)]

    def layers(self, start: int, stop: int) -> list[Layer]:
        """Where the columns of rows [start, stop) are."""
        own: list[Any] = [cut(self.value, start, stop)] if self.call is None else list(self.pieces(start, stop))
        if self.adds is None:
            return [Layer(None, own)]
        before = []
        position = 0
        for result, rows in self.rows_before:
            begin, end = max(start - position, 0), min(stop - position, rows)
            if begin < end:
                before.append(result.layers(result.offset + begin, result.offset + end))
            position += rows
        if not before:
            first = self.rows_before[0][0]
            before.append(first.layers(first.offset, first.offset))
        return [*_stacked(before), Layer(self.adds, own)]

    def holders(self) -> Iterator[ChunkResult]:
        """The results of which it has columns: its own, and those of the rows that it was given."""
        yield self
        for result, _ in self.rows_before:
            yield from result.holders()

    def at(self, offset: int) -> ChunkResult:
        """The same result from a later row."""
        return replace(self, offset=self.offset + offset)


def joined(pieces: Sequence[tuple[ChunkResult, int]]) -> Any:
    """One value of the rows of several results: lazy where workers hold all of them.

    Args:
        pieces: At least one: a result, and how many rows from its offset on.
    """
    return _value(_stacked([result.layers(result.offset, result.offset + rows) for result, rows in pieces]))


def _stacked(parts: Sequence[list[Layer]]) -> list[Layer]:
    """The columns of rows of several results: layer by layer where these are the same in all, otherwise whole rows."""
    if len({tuple([layer.names for layer in layers]) for layers in parts}) > 1:
        return [Layer(None, [_value(layers) for layers in parts])]
    return [
        Layer(layers[0].names, [part for layer in layers for part in layer.parts])
        for layers in zip(*parts, strict=True)
    ]


def _value(layers: Sequence[Layer]) -> Any:
    first, *added = [_rows(layer.parts) for layer in layers]
    if not added:
        return first
    return tables.join(
        first, *[tables.select(one, *layer.names or ()) for one, layer in zip(added, layers[1:], strict=True)]
    )


def _rows(parts: Sequence[Any]) -> Any:
    """One value of parts that follow each other; lazy where workers hold all of them, or some are lazy values."""
    named = [part for part in parts if isinstance(part, ResultRows)]
    if len(named) == len(parts):
        return assemble(named)
    if any(isinstance(part, Lazy) for part in parts):
        return tables.concat([assemble([part]) if isinstance(part, ResultRows) else part for part in parts])
    values = [assemble([part]).result() if isinstance(part, ResultRows) else part for part in parts]
    return join(values, "rows of a stream") if len(values) > 1 else values[0]


def cut(value: Any, start: int, stop: int) -> Any:
    """Rows [start, stop) of a value; those of a lazy result stay on the workers where its rows can be counted."""
    if not isinstance(value, Lazy):
        return take(value, start, stop)
    pieces = pieces_of(value, start, stop)
    if pieces:
        return assemble(pieces)
    return tables.take(value, slice(start, stop)) if is_table(value) else value[start:stop]


def join_rows(values: Sequence[Any]) -> Any:
    """The rows of all values in order; those of lazy results stay on the workers where they can be counted."""
    if len(values) == 1:
        return values[0]
    if all(isinstance(value, Lazy) for value in values):
        pieces = [pieces_of(value, 0, _ALL) for value in values]
        if all(pieces):
            return assemble([piece for part in pieces for piece in part])
    if any(isinstance(value, Lazy) and is_table(value) for value in values):
        return tables.concat(values)
    return join([value.result() if isinstance(value, Lazy) else value for value in values], "rows of the source")


def pieces_of(lazy: Lazy[Any], start: int, stop: int) -> list[ResultRows]:
    """Rows [start, stop) of a lazy result by call and rank; empty if only its value shows them."""
    lazy.wait()
    inputs, how = hand_over(lazy, 0)
    if how.how not in ("rows", "one"):
        return []
    kept: Sequence[int] = range(len(inputs))
    if how.once is not None and all(call.outcome(rank).rows_given is None for call, rank in inputs):
        kept = how.once
    outcomes = [inputs[index][0].outcome(inputs[index][1]) for index in kept]
    if how.windows is None and any(outcome.numbers is not None for outcome in outcomes):
        return _scattered_pieces([inputs[index] for index in kept], outcomes, range(start, stop))
    pieces: list[ResultRows] = []
    position = 0
    for index in kept:
        call, rank = inputs[index]
        rows = call.outcome(rank).rows
        if rows is None:
            return []
        first, last = how.windows[index] if how.windows is not None else (0, rows)
        begin, end = max(start - position, 0), min(stop - position, last - first)
        if begin < end or (start == stop and not pieces):
            pieces.append(ResultRows(call, rank, first + min(begin, last - first), first + max(begin, end)))
        position += last - first
    return pieces


def _scattered_pieces(
    inputs: Sequence[tuple[PendingCall, int]], outcomes: Sequence[Outcome], wanted: range
) -> list[ResultRows]:
    """Rows of a call that were divided by their costs; empty if only its value shows them."""
    found: dict[int, tuple[int, int]] = {}
    for index, outcome in enumerate(outcomes):
        if outcome.numbers is None or outcome.rows != len(outcome.numbers):
            return []
        found.update({number: (index, place) for place, number in enumerate(outcome.numbers)})
    numbers = [number for number in wanted[: len(found)] if number in found]
    return [ResultRows(*inputs[found[one][0]], found[one][1], found[one][1] + 1) for one in numbers]


def known_rows(lazy: Lazy[Any]) -> int | None:
    """Rows of a lazy result that is done, without fetching it; None if only its value shows them."""
    inputs, how = hand_over(lazy, 0)
    if how.how not in ("rows", "one") or how.padded or how.once is not None or how.windows is not None:
        return None
    if any(call.failed() for call, _ in inputs):
        return None
    rows = [call.outcome(rank).rows for call, rank in inputs]
    return None if None in rows else sum(filter(None, rows))
