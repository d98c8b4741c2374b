"""The failures of one call, and the call from whose failure they follow: one that makes its argument."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from twinkle_remote.failures.lost_peer import CAUSE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.call.pending.call_runtime import CallRuntime
    from twinkle_remote.protocol.backend import Reply
    from twinkle_remote.protocol.failure import Failure
    from twinkle_remote.protocol.messages import Kind, Outcome


class SourceCall(Protocol):
    """A call that makes an argument of another one, as that one needs it."""

    @property
    def failing(self) -> CallFailures[SourceCall]:
        """Its failures."""

    def done(self) -> bool:
        """Whether every worker has answered."""

    def failed(self) -> bool:
        """Whether a worker is known to have failed."""

    def pending(self) -> Sequence[Reply]:
        """Replies that are not known to be done."""


S = TypeVar("S", bound=SourceCall, covariant=True)


class CallFailures(Generic[S]):
    """The known failures of one call.

    Args:
        sources: Calls that make its arguments, or the call of which it reads some answers.

    Attributes:
        known: In completion order.
        at: When the first rank failed, in seconds of the wall clock; 0 before.
        sources: As given; none any more when it has ended well.
        repeats: Its source is the same call, of which it reads some answers or reads them in another way.
    """

    def __init__(self, sources: Sequence[S]) -> None:
        self.known: list[Failure] = []
        self.at = 0.0
        self.sources = tuple(sources)
        self.repeats = False
        self._cause: S | None = None

    def add(self, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        """Append the failures of outcomes that arrived together, at least one; returns these in their ends' order."""
        ends = sorted(outcomes, key=lambda outcome: (outcome.started + outcome.seconds, outcome.rank))
        self.known += [outcome.failure for outcome in ends if outcome.failure is not None]
        if not self.at:
            self.at = ends[0].started + ends[0].seconds or time.time()
        return ends

    def matter_to(self, kind: Kind) -> bool:
        """Whether a failure is known that must be reported; a generator that is being closed may end with its worker.

        Args:
            kind: Of the call.
        """
        return any(kind != "close" or not failure.died for failure in self.known)

    def follow(self) -> bool:
        """Whether they follow from those of a source."""
        return self.repeats or any(failure.upstream for failure in self.known)

    def cause(self) -> S | None:
        """The source from whose failure they follow, the same one each time; None if none is known to have failed."""
        if self._cause is None and self.follow():
            for source in self.sources:
                source.done()
            failed = [source for source in self.sources if source.failed()]
            mine = set(map(_identity, self.known))
            same = (source for source in failed if not mine.isdisjoint(map(_identity, source.failing.known)))
            self._cause = next(same, next(iter(failed), None))
        return self._cause

    def as_seen(self) -> Sequence[Failure]:
        """The failures as a caller is shown them: a known cause stands for what follows from it."""
        first = self._first_cause()
        if first is self:
            return self.known
        cause = first.known[0].as_upstream()
        return [cause if failure.upstream else failure for failure in self.known]

    def _first_cause(self) -> CallFailures[SourceCall]:
        """The failures from which all others on the way to these follow."""
        found: CallFailures[SourceCall] = self
        while (source := found.cause()) is not None:
            found = source.failing
        return found

    def wait_for_a_source(self, runtime: CallRuntime) -> None:
        """Wait shortly for the failure of a source: two calls' answers may arrive in either order."""
        until = time.monotonic() + CAUSE_SECONDS
        while not runtime.closed:
            pending = [reply for source in self.sources if not source.done() for reply in source.pending()]
            if not pending or any(source.failed() for source in self.sources):
                return
            if not runtime.backend.wait(pending, max(0.0, until - time.monotonic())):
                return


def _identity(failure: Failure) -> tuple[str, ...]:
    """The identity of a failure that two calls know."""
    return failure.label, failure.method, failure.type_name, failure.message
