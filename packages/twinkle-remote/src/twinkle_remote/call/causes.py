"""The cause of a call's failure: the source from whose failure it follows, which a caller is shown first."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from twinkle_remote.failures.report import CAUSE_SECONDS
from twinkle_remote.waiting import wait_for_calls

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.call.pending import PendingCall
    from twinkle_remote.protocol.messages import Failure


def cause_of(call: PendingCall) -> PendingCall | None:
    """The source from whose failure those of a call follow, the same one each time; None if none has failed.

    Args:
        call: A call; of its sources the one counts that has a failure in common with it, else the first that failed.
    """
    if call.known_cause is None and call.follows():
        failed = [source for source in call.sources if source.failed()]
        mine = set(map(_identity, call.failures))
        same = (source for source in failed if not mine.isdisjoint(map(_identity, source.failures)))
        call.known_cause = next(same, next(iter(failed), None))
    return call.known_cause


def first_cause(call: PendingCall) -> PendingCall:
    """The first of the calls from whose failures its own follow: itself if it follows from none."""
    first, between = call, []
    while (source := cause_of(first)) is not None:
        between.append(first)
        first = source
    if not first.follows():
        for follower in between:
            follower.known_cause = first  # a long chain is walked once
    return first


def as_raised(call: PendingCall) -> Sequence[Failure]:
    """The failures of a call as they are raised: a known cause stands for what follows from it."""
    first = first_cause(call)
    if first is call:
        return call.failures
    cause = first.failures[0].as_upstream()
    return [cause if failure.upstream else failure for failure in call.failures]


def wait_for_a_source(call: PendingCall) -> None:
    """Wait shortly for the failure of a source, if a call's own follow from one: answers arrive in either order."""
    until = time.monotonic() + CAUSE_SECONDS
    if call.follows() and not call.runtime.closed:
        wait_for_calls(call.sources, until, lambda: _may_tell(call.sources))


def _may_tell(sources: Sequence[PendingCall]) -> bool:
    """Whether one of several calls has failed, or none of them will."""
    return any(source.failed() for source in sources) or all(source.is_over for source in sources)


def _identity(failure: Failure) -> tuple[str, ...]:
    """The identity of a failure that two calls know."""
    return failure.label, failure.method, failure.type_name, failure.message
