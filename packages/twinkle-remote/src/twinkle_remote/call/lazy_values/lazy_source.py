"""The source of a lazy result: what it stands for, such as the result of one call, or rows of several."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from twinkle_remote.call.collect import combine, combined_by, ranks_read
from twinkle_remote.protocol.messages import Itself
from twinkle_remote.running import refuse_own_rank
from twinkle_remote.tables.nodes import Input, LazyArgument, StoredRows
from twinkle_remote.waiting import wait_for_one

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from twinkle_remote.call.pending.pending_call import PendingCall


class LazySource(Protocol):
    """The source of a lazy result's value."""

    @property
    def calls(self) -> Sequence[PendingCall]:
        """The calls that make it."""

    @property
    def own_calls(self) -> Sequence[PendingCall]:
        """The calls that are cancelled with it."""

    def value(self, timeout: float | None) -> Any:
        """Wait for it and fetch it to this process; see `Lazy.result`."""

    def done(self) -> bool:
        """Whether every worker has answered; never waits."""

    def wait(self, timeout: float | None) -> None:
        """Wait for every worker without fetching; see `Lazy.wait`."""

    def describe(self) -> str:
        """Class.method and where it runs."""

    def state(self) -> str:
        """A short text of its state; never waits."""

    def released(self) -> None:
        """Called when the lazy result is deleted."""

    def hand_over(self, offset: int) -> tuple[Sequence[tuple[PendingCall, int]], LazyArgument]:
        """The call and the rank of each outcome that a consumer reads, and how the outcomes become the value.

        Args:
            offset: Index of the first of them among the consumer's inputs.
        """


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
        by = combined_by(call.spec, call.ranks, call.mesh, call.name).over(outcomes)
        value = combine(by, [call.fetch(outcome, timeout, began) for outcome in outcomes])
        if value is Itself.ITSELF or (isinstance(value, list) and value and value[0] is Itself.ITSELF):
            return self.itself
        return value

    def done(self) -> bool:
        """Whether every worker has answered; never waits."""
        return self._call.done()

    def wait(self, timeout: float | None) -> None:
        """Wait for every worker without fetching; see `Lazy.wait`."""
        self._call.wait(timeout)

    def describe(self) -> str:
        """Class.method, group, number of workers, mesh."""
        return f"{self._call.name} on {self._call.call.where()}"

    def state(self) -> str:
        """A short text of the call's state; never waits."""
        return self._call.state()

    def released(self) -> None:
        """Called when the lazy result is deleted."""
        self._call.released()

    def hand_over(self, offset: int) -> tuple[Sequence[tuple[PendingCall, int]], LazyArgument]:
        """The outcomes that a consumer reads, and how they become the value; see `LazySource`."""
        call = self._call
        call.handed_on = True
        each = call.each
        ranks = ranks_read(call.spec, call.ranks, call.mesh, each=each is not False)
        once = None
        if each is None:  # only the outcomes show whether each worker has a value, or each data rank
            counted = ranks_read(call.spec, call.ranks, call.mesh, each=False)
            once = None if counted == ranks else tuple(ranks.index(rank) for rank in counted)
        of = tuple([StoredRows(Input(offset + index)) for index in range(len(ranks))])
        by = combined_by(call.spec, call.ranks, call.mesh, call.name)
        return [(call, rank) for rank in ranks], LazyArgument(replace(by, of=of, once=once))


class ManyCalls:
    """The calls that make one lazy value.

    Args:
        calls: At least one, perhaps several times.
    """

    __slots__ = ("_calls",)

    def __init__(self, calls: Iterable[PendingCall]) -> None:
        self._calls = tuple(dict.fromkeys(calls))

    @property
    def calls(self) -> Sequence[PendingCall]:
        """The calls, each once."""
        return self._calls

    @property
    def own_calls(self) -> Sequence[PendingCall]:
        """The calls that are cancelled with it."""
        return self._calls

    def done(self) -> bool:
        """Whether every worker has answered; never waits."""
        return all(call.done() for call in self._calls)

    def wait(self, timeout: float | None) -> None:
        """Wait for every call; the first failure among them is raised at once."""
        until = None if timeout is None else time.monotonic() + timeout
        for pending in self._pending():
            refuse_own_rank(pending.waited_for())
        while (call := self._next_to_wait_for()) is not None:
            left = None if until is None else until - time.monotonic()
            if len(self._pending()) == 1 or call.is_over or call.overdue():
                call.wait(None if left is None else max(0.0, left))
            elif left is not None and left <= 0.0:
                raise call.lateness(timeout)
            else:
                call.check_open()
                wait_for_one(self._pending(), until)

    def state(self) -> str:
        """A short text of its state; never waits."""
        if any(call.failed() for call in self._calls):
            return "failed"
        pending = len(self._pending())
        return f"{len(self._calls) - pending} of {len(self._calls)} calls done" if pending else "done"

    def _pending(self) -> Sequence[PendingCall]:
        return [call for call in self._calls if not call.done()]

    def _next_to_wait_for(self) -> PendingCall | None:
        """A call that has failed or is late, otherwise one that is not done; None if all are done."""
        open_ones = [call for call in self._calls if not call.done() or call.failed()]
        over = [call for call in open_ones if call.failed() or call.overdue()]
        first = sorted(over, key=lambda call: call.failed_at())
        return next(iter([*first, *open_ones]), None)
