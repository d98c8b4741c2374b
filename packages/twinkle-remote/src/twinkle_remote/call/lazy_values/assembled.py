"""Rows of many calls as one lazy result: they stay where they are, and the next call reads only what it needs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from twinkle_remote.call.lazy_values.lazy import Lazy, lazy_over
from twinkle_remote.call.lazy_values.lazy_source import ManyCalls
from twinkle_remote.rows.concat import concat_results
from twinkle_remote.tables.nodes import Concat, Input, LazyArgument, StoredRows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from twinkle_remote.call.pending.pending_call import PendingCall


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


def assemble(pieces: Iterable[ResultRows | tuple[PendingCall, int, int, int]]) -> Lazy[Any]:
    """A lazy result that stands for rows of many calls, in the order of the pieces.

    The results that it names are kept as long as it exists.

    Args:
        pieces: At least one, so that the type of the rows is known; a piece may be empty.

    Raises:
        ValueError: There is no piece, or the rows are out of range.
        DispatchError: A call returns tuples of columns, which have no common rows.
    """
    merged: list[ResultRows] = []
    for piece in map(ResultRows._make, pieces):
        _check(piece)
        last = merged[-1] if merged else None
        if last is not None and (last.call, last.rank, last.stop) == piece[:3]:
            merged[-1] = last._replace(stop=piece.stop)
        else:
            merged.append(piece)
    if not merged:
        raise ValueError("no pieces: a lazy result of no rows takes their type from an empty piece (start = stop)")
    return lazy_over(AssembledRows(merged))


def _check(piece: ResultRows) -> None:
    call = piece.call
    if piece.rank not in call.ranks:
        raise ValueError(f"{call.name} was called on ranks {list(call.ranks)}, not on {piece.rank}")
    rows = None
    if call.done() and not call.failed():
        rows = call.outcome(piece.rank).rows
        if rows is None:
            raise ValueError(f"the result of {call.label(piece.rank)} of {call.name} has no rows")
    if not 0 <= piece.start <= piece.stop or (rows is not None and piece.stop > rows):
        of = "" if rows is None else f" of {rows}"
        raise ValueError(
            f"rows [{piece.start}, {piece.stop}){of} of {call.label(piece.rank)} of {call.name} are out of range"
        )


class AssembledRows(ManyCalls):
    """Rows of many calls.

    Args:
        pieces: At least one.
    """

    __slots__ = ("_pieces",)

    def __init__(self, pieces: Sequence[ResultRows]) -> None:
        super().__init__([piece.call for piece in pieces])
        self._pieces = tuple(pieces)
        for call in self.calls:
            call.held = True

    @property
    def pieces(self) -> Sequence[ResultRows]:
        """The rows, in order."""
        return self._pieces

    def value(self, timeout: float | None) -> Any:
        """Wait for all rows and fetch them to this process; see `Lazy.result`."""
        began = time.monotonic()
        self.wait(timeout)
        values = []
        for call, rank, start, stop in self._pieces:
            outcome = call.outcome(rank)
            values.append(call.fetch(outcome, timeout, began, (range(start, stop), None)))
        return concat_results(values, f"{self.calls[0].name} result")

    def describe(self) -> str:
        """Names of the calls, and the number of rows."""
        names = ", ".join(dict.fromkeys(call.name for call in self.calls))
        return f"{sum(piece.stop - piece.start for piece in self._pieces)} rows of {len(self.calls)} calls ({names})"

    def released(self) -> None:
        """Called when the lazy result is deleted."""
        for call in self.calls:
            call.released()

    def hand_over(self, offset: int) -> tuple[Sequence[tuple[PendingCall, int]], LazyArgument]:
        """The outcomes that a consumer reads, and the rows of each; see `LazySource`."""
        for call in self.calls:
            call.handed_on = True
        parts = [StoredRows(Input(offset + i), range(one.start, one.stop)) for i, one in enumerate(self._pieces)]
        inputs = [(piece.call, piece.rank) for piece in self._pieces]
        return inputs, LazyArgument(Concat(tuple(parts), results=self.calls[0].name))
