"""The cause of a failure: what a call's failure follows from, and which failures its caller has retrieved.

A call fails with the failure of a source, whose lazy result is its argument: a caller is shown that one first, and who
retrieves a failure retrieves those from which it follows.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from twinkle_remote.failures.report import CAUSE_SECONDS, raise_failures
from twinkle_remote.failures.travel import was_cancelled
from twinkle_remote.sessions.pending_calls import wait_for_calls

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


def raise_first(call: PendingCall) -> None:
    """Raise the first failure of a call; it, and those that it follows from, are retrieved.

    It waits shortly for the failure of a source, if its own follows from one: answers arrive in either order.
    """
    follower: PendingCall | None = call
    while follower is not None:
        follower.retrieved()
        if follower.follows() and not call.runtime.closed:
            wait_for_calls(follower.sources, time.monotonic() + CAUSE_SECONDS, partial(_may_tell, follower.sources))
        follower = cause_of(follower)
    raise_failures(call.name, call.group.name, as_raised(call), call.line)


def _may_tell(sources: Sequence[PendingCall]) -> bool:
    """Whether one of several calls has failed, or none of them will."""
    return any(source.failed() for source in sources) or all(source.is_over for source in sources)


def is_retrieved(call: PendingCall) -> bool:
    """Whether a call that failed or is late needs no report: a caller has its failure, or the cause of it."""
    if call.seen or call.prefetched or (call.was_cancelled and all(map(was_cancelled, call.failures))):
        return True
    if call.failures and (first := first_cause(call)) is not call:
        return first.seen
    return any(one.seen for one in call.behind(lambda one: one.failed() or one.late()))


def _identity(failure: Failure) -> tuple[str, ...]:
    """The identity of a failure that two calls know."""
    return failure.label, failure.method, failure.type_name, failure.message
