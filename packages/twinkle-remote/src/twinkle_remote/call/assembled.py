"""Rows of many calls as one lazy result: they stay where they are, and the next call reads only what it needs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from twinkle_remote.call.lazy import Lazy, lazy_over
from twinkle_remote.errors import DispatchError
from twinkle_remote.protocol.handed import HandOver
from twinkle_remote.protocol.whole_calls import RowsOfRank
from twinkle_remote.sessions.current import running
from twinkle_remote.values.join import join_results

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from twinkle_remote.call.pending_call import PendingCall

_SLICE_SECONDS = 1.0  # between checks of the deadlines, where several calls are waited for


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
    if call.spec.collect == "flatten" and call.spec.columns:
        raise DispatchError(f"{call.name} returns a tuple of columns, of which no rows are taken: return a dict")
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


class AssembledRows:
    """Rows of many calls.

    Args:
        pieces: At least one.
    """

    __slots__ = ("_calls", "_pieces")

    def __init__(self, pieces: Sequence[ResultRows]) -> None:
        self._pieces = tuple(pieces)
        self._calls = tuple(dict.fromkeys([piece.call for piece in pieces]))
        for call in self._calls:
            call.held = True

    @property
    def calls(self) -> Sequence[PendingCall]:
        """The calls, each once."""
        return self._calls

    def value(self, timeout: float | None) -> Any:
        """Wait for all rows and fetch them to this process; see `Lazy.result`."""
        began = time.monotonic()
        self.wait(timeout)
        whole = running().whole
        if whole is not None:
            rows = [RowsOfRank(call.outcome(rank).payload, start, stop) for call, rank, start, stop in self._pieces]
            value, size = whole.read_rows(rows, timeout)
            self._calls[0].count_fetched(size)
            return value
        values = [
            call.fetch(call.outcome(rank), _seconds(call, timeout), began, slice(start, stop))
            for call, rank, start, stop in self._pieces
        ]
        return join_results(values, f"{self._calls[0].name} result")

    def done(self) -> bool:
        """Whether every worker has answered; never waits."""
        return all(call.done() for call in self._calls)

    def wait(self, timeout: float | None) -> None:
        """Wait for every call; the first failure among them is raised at once."""
        until = None if timeout is None else time.monotonic() + timeout
        while (call := self._next_to_wait_for()) is not None:
            left = None if until is None else until - time.monotonic()
            if len(self._pending()) == 1 or call.failed() or call.overdue():
                call.wait(None if left is None else max(0.0, left))
            elif left is not None and left <= 0.0:
                raise call.lateness(timeout)
            else:
                self._wait_for_any(_SLICE_SECONDS if left is None else min(left, _SLICE_SECONDS))

    def ends_within(self, seconds: float) -> bool:
        """Wait for at most `seconds` without raising; returns whether `wait` would now return at once."""
        until = time.monotonic() + seconds
        while (call := self._next_to_wait_for()) is not None:
            left = until - time.monotonic()
            if call.ends_within(0.0):
                return True
            if left <= 0.0:
                return False
            self._wait_for_any(min(left, _SLICE_SECONDS))
        return True

    def describe(self) -> str:
        """Names of the calls, and the number of rows."""
        names = ", ".join(dict.fromkeys(call.name for call in self._calls))
        return f"{sum(piece.stop - piece.start for piece in self._pieces)} rows of {len(self._calls)} calls ({names})"

    def state(self) -> str:
        """A short text of its state; never waits."""
        self.done()
        if any(call.failed() for call in self._calls):
            return "failed"
        pending = len(self._pending())
        return f"{len(self._calls) - pending} of {len(self._calls)} calls done" if pending else "done"

    def released(self) -> None:
        """Called when the lazy result is deleted."""
        for call in self._calls:
            call.released()

    def hand_over(self, offset: int) -> tuple[Sequence[tuple[PendingCall, int]], HandOver]:
        """The outcomes that a consumer reads, and the rows of each; see `LazySource`."""
        for call in self._calls:
            call.handed_on = True
        windows = tuple([(piece.start, piece.stop) for piece in self._pieces])
        inputs = [(piece.call, piece.rank) for piece in self._pieces]
        return inputs, HandOver(offset, offset + len(inputs), "rows", windows=windows)

    def _pending(self) -> Sequence[PendingCall]:
        return [call for call in self._calls if call.pending()]

    def _next_to_wait_for(self) -> PendingCall | None:
        """A call that has failed or is late, otherwise one that is not done; None if all are done."""
        open_ones = [call for call in self._calls if not call.done() or call.failed()]
        over = [call for call in open_ones if call.failed() or call.overdue()]
        first = sorted(over, key=lambda call: call.failed_at())
        return next(iter([*first, *open_ones]), None)

    def _wait_for_any(self, seconds: float) -> None:
        running().backend.wait([reply for call in self._pending() for reply in call.pending()], seconds)


def _seconds(call: PendingCall, timeout: float | None) -> float | None:
    """Seconds for waiting and reading: the call's own timeout is a limit too."""
    return min([limit for limit in (timeout, call.spec.timeout) if limit is not None], default=None)
