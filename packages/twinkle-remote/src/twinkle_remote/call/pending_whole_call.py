"""A call in flight whose ranks are elsewhere: its replies, and the errors that its backend makes."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from twinkle_remote.call.pending_call import PendingCall
from twinkle_remote.call.pending_rank_call import PendingRankCall
from twinkle_remote.sessions.stats import CallRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.protocol.component import Component
    from twinkle_remote.protocol.messages import Outcome
    from twinkle_remote.protocol.spec import FunctionSpec
    from twinkle_remote.protocol.whole_calls import WholeReply
    from twinkle_remote.sessions.runtime import Runtime


class _WholeRecord:
    """The record of a whole call: it takes the answers of the ranks, not the replies that stand for all of them."""

    def __init__(self, record: CallRecord, reply: WholeReply) -> None:
        self._record = record
        self._reply = reply

    def add(self, outcome: Outcome) -> None:
        """Take the answers that have arrived."""
        while self._reply.answers:
            self._record.add([self._reply.answers.popleft()])

    @property
    def driver_fetched(self) -> int:
        """Bytes of results that came to this process."""
        return self._record.driver_fetched

    @driver_fetched.setter
    def driver_fetched(self, value: int) -> None:
        self._record.driver_fetched = value


class PendingWholeCall(PendingCall):
    """A call in flight whose ranks are elsewhere.

    It has two replies: the result or the first failure, and the end of all ranks. So a failure is seen at once, and the
    call is done when its last rank is.

    Args:
        runtime: The runtime of the call.
        component: The component.
        name: Class.method.
        spec: Options of the function.
        reply: The reply.
        ranks: Ranks that are called.
        line: File and line of the caller.
        record: Record of its times and bytes.
        sources: Calls whose lazy results are its arguments.
    """

    def __init__(
        self,
        runtime: Runtime,
        component: Component,
        name: str,
        spec: FunctionSpec,
        reply: WholeReply,
        *,
        ranks: Sequence[int],
        line: str,
        record: CallRecord,
        sources: Sequence[PendingCall],
    ) -> None:
        super().__init__(
            runtime,
            runtime.backend.group(component.group),
            name,
            _undivided(spec),
            component.mesh,
            (reply, reply.end),
            line=line,
            record=cast("Any", _WholeRecord(record, reply)),
            sources=sources,
        )
        self.whole = reply
        self._called = ranks
        self._component = component
        self._own_spec = spec

    def by_rank(self) -> PendingCall:
        """The same call, whose ranks' answers are read one by one; it asks for them."""
        call = PendingRankCall(
            self._runtime,
            self._component,
            self.name,
            self._own_spec,
            self.whole.by_rank(self._called),
            line=self._line,
            record=CallRecord(self.name, self._component.group, len(self._called)),
            sources=[self],
            repeats=True,
            until=self._deadline,
        )
        call.prefetched = True
        return call

    def where(self) -> str:
        """Group, number of called workers, and the mesh."""
        head, _, dims = super().where().partition("]")
        return f"{head.partition('[')[0]}[{len(self._called)}]{dims}"

    def state(self) -> str:
        """A short text of the call's state; never waits."""
        text = super().state()
        return text if text in ("done", "failed", "lost at shutdown") else "not done"

    def lateness(self, seconds: float | None) -> Any:
        """The error that it is not done after this time."""
        return self.whole.lateness(seconds)

    def cancel(self) -> None:
        """Cancel it on the ranks that have not answered; returns at once."""
        if self._pending and not self._runtime.closed:
            self.whole.cancel()

    def _withdraw(self) -> None:
        self.whole.withdraw()

    def _raise_failures(self) -> None:
        if self._failures:
            self._see()
            raise self.whole.error()


@lru_cache(maxsize=1024)
def _undivided(spec: FunctionSpec) -> FunctionSpec:
    """The options of a call that another process divides and collects."""
    return replace(
        spec, dispatch="all", collect="first", split=None, replicate=(), uneven=None, weight=None, columns=None
    )
