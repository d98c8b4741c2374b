"""Rows of many calls as one lazy result: they stay where they are, and the next call reads only what it needs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from twinkle_remote.lazy.lazy import Lazy, LazySource, lazy_over
from twinkle_remote.rows.concat import concat_results
from twinkle_remote.tables.nodes import Concat, Input, LazyArgument, StoredRows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from twinkle_remote.call.pending import PendingCall


class ResultRows(NamedTuple):
    """Rows [start, stop) of the result of one rank.

    Attributes:
        call: The call.
        rank: One of its ranks.
        start: First row, at or above 0.
        stop: One past the last row.
    """

    call: PendingCall
    rank: int
    start: int
    stop: int


class AssembledRows(LazySource):
    """Rows of many calls, in the order of the pieces; the results that it names are kept as long as it exists.

    Args:
        pieces: At least one, so that the type of the rows is known; a piece may be empty.

    Raises:
        ValueError: There is no piece.

    Attributes:
        pieces: The rows; pieces that follow each other in one result are one.
    """

    __slots__ = ("pieces",)

    def __init__(self, pieces: Iterable[ResultRows]) -> None:
        merged: list[ResultRows] = []
        for piece in pieces:
            last = merged[-1] if merged else None
            if last is not None and (last.call, last.rank, last.stop) == piece[:3]:
                merged[-1] = last._replace(stop=piece.stop)
            else:
                merged.append(piece)
        if not merged:
            raise ValueError("no pieces: a lazy result of no rows takes their type from an empty piece (start = stop)")
        super().__init__([piece.call for piece in merged])
        self.pieces = tuple(merged)
        for call in self.calls:
            call.held = True

    def value(self, timeout: float | None) -> Any:
        """Wait for all rows and fetch them to this process; see `Lazy.result`."""
        began = time.monotonic()
        self.wait(timeout)
        values = []
        for call, rank, start, stop in self.pieces:
            outcome = call.outcome(rank)
            values.append(call.fetch(outcome, timeout, began, (range(start, stop), None)))
        return concat_results(values, f"{self.calls[0].name} result")

    def describe(self) -> str:
        """Names of the calls, and the number of rows."""
        names = ", ".join(dict.fromkeys(call.name for call in self.calls))
        return f"{sum(piece.stop - piece.start for piece in self.pieces)} rows of {len(self.calls)} calls ({names})"

    def released(self) -> None:
        """Called when the lazy result is deleted."""
        for call in self.calls:
            call.released()

    def hand_over(self, offset: int) -> tuple[Sequence[tuple[PendingCall, int]], LazyArgument]:
        """The outcomes that a consumer reads, and the rows of each; see `LazySource`."""
        for call in self.calls:
            call.handed_on = True
        parts = [StoredRows(Input(offset + i), range(one.start, one.stop)) for i, one in enumerate(self.pieces)]
        inputs = [(piece.call, piece.rank) for piece in self.pieces]
        return inputs, LazyArgument(Concat(tuple(parts), results=self.calls[0].name))


def assemble(pieces: Iterable[ResultRows]) -> Lazy[Any]:
    """A lazy result that stands for rows of many calls; see `AssembledRows`."""
    return lazy_over(AssembledRows(pieces))
