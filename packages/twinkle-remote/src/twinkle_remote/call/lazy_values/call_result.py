"""The result of one call, as a lazy result stands for it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from twinkle_remote.call.collect import combine, combined_by, ranks_read
from twinkle_remote.protocol.messages import Itself

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.call.pending.pending_call import PendingCall
    from twinkle_remote.protocol.handed import HandOver


class CallResult:
    """The result of one call: the values of its ranks, combined by the function's collect.

    Args:
        call: The call in flight.
        itself: The value if the method returned the component itself: the caller's handle.

    Attributes:
        itself: As given.
    """

    __slots__ = ("_call", "itself")

    def __init__(self, call: PendingCall, itself: object = None) -> None:
        call.held = True
        self._call = call
        self.itself = itself

    @property
    def calls(self) -> Sequence[PendingCall]:
        """The call."""
        return (self._call,)

    @property
    def own_calls(self) -> Sequence[PendingCall]:
        """The call."""
        return (self._call,)

    def value(self, timeout: float | None) -> Any:
        """Wait for it and fetch it to this process; see `Lazy.result`."""
        call = self._call
        began = time.monotonic()
        call.wait(timeout)
        read = ranks_read(call.spec, call.ranks, call.mesh, each=bool(call.each))
        outcomes = [call.outcome(rank) for rank in read]
        by = combined_by(call.spec, call.ranks, call.mesh)
        weighs = by.how == "mean" and not by.padded
        value = combine(
            by,
            [call.fetch(outcome, timeout, began) for outcome in outcomes],
            name=call.name,
            rows_given=[outcome.weighing if weighs else outcome.rows_given for outcome in outcomes],
            rows=outcomes[0].total if by.padded else None,
            numbers=[outcome.numbers for outcome in outcomes],
        )
        if value is Itself.ITSELF or (isinstance(value, list) and value and value[0] is Itself.ITSELF):
            return self.itself
        return value

    def done(self) -> bool:
        """Whether every worker has answered; never waits."""
        return self._call.done()

    def wait(self, timeout: float | None) -> None:
        """Wait for every worker without fetching; see `Lazy.wait`."""
        self._call.wait(timeout)

    def ends_within(self, seconds: float) -> bool:
        """Wait for at most `seconds` without raising; returns whether `wait` would now return at once."""
        return self._call.ends_within(seconds)

    def describe(self) -> str:
        """Class.method, group, number of workers, mesh."""
        return f"{self._call.name} on {self._call.call.where()}"

    def state(self) -> str:
        """A short text of the call's state; never waits."""
        return self._call.state()

    def released(self) -> None:
        """Called when the lazy result is deleted."""
        self._call.released()

    def hand_over(self, offset: int) -> tuple[Sequence[tuple[PendingCall, int]], HandOver]:
        """The outcomes that a consumer reads, and how they become the value; see `LazySource`."""
        call = self._call
        call.handed_on = True
        each = call.each
        ranks = ranks_read(call.spec, call.ranks, call.mesh, each=each is not False)
        once = None
        if each is None:  # only the outcomes show whether each worker has a value, or each data rank
            counted = ranks_read(call.spec, call.ranks, call.mesh, each=False)
            once = None if counted == ranks else tuple(ranks.index(rank) for rank in counted)
        by = combined_by(call.spec, call.ranks, call.mesh)
        return [(call, rank) for rank in ranks], by._replace(start=offset, stop=offset + len(ranks), once=once)
