"""A failure that a caller has seen is not told again, in whichever order the answers of two calls arrive."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from twinkle_remote import RemoteCallError
from twinkle_remote.backends.thread_reply import ThreadReply
from twinkle_remote.call.pending_call import PendingCall
from twinkle_remote.protocol.failure import Failure
from twinkle_remote.protocol.messages import Outcome
from twinkle_remote.protocol.spec import FunctionSpec
from twinkle_remote.sessions.current import running
from twinkle_remote.sessions.stats import CallRecord

if TYPE_CHECKING:
    from collections.abc import Sequence


def pending(name: str, replies: Sequence[ThreadReply], sources: Sequence[PendingCall] = ()) -> PendingCall:
    """A call whose replies the test completes."""
    runtime = running()
    record, group = CallRecord(name, "two", len(replies)), runtime.backend.group("two")
    call = PendingCall(runtime, group, name, FunctionSpec(), None, replies, line="here", record=record, sources=sources)
    call.held = True
    return call


def failed(reply: ThreadReply, *, upstream: bool) -> None:
    """Complete a reply with a failure."""
    failure = Failure("two[0/2]", "node", "KeyError", "'x'", upstream=upstream)
    reply.complete(Outcome(reply.rank, failure=failure))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("seconds", [0.0, 0.2])
def test_the_cause_may_arrive_after_what_follows_from_it(seconds: float) -> None:
    ours, theirs = [ThreadReply(0), ThreadReply(1)], [ThreadReply(0), ThreadReply(1)]
    source = pending("Rows.fail", theirs)
    call = pending("Rows.take", ours, [source])
    failed(ours[0], upstream=True)
    later = threading.Timer(seconds, failed, [theirs[1]], {"upstream": False})
    later.start()
    with pytest.raises(RemoteCallError, match="'x'"):
        call.wait()
    assert source.seen and not source.unseen()
    later.join()


@pytest.mark.usefixtures("threads")
def test_a_failure_of_its_own_waits_for_no_source() -> None:
    ours, theirs = [ThreadReply(0)], [ThreadReply(0)]
    source = pending("Rows.fail", theirs)
    call = pending("Rows.take", ours, [source])
    failed(ours[0], upstream=False)
    with pytest.raises(RemoteCallError, match="'x'"):
        call.wait()
    failed(theirs[0], upstream=False)
    assert source.done() and source.unseen()
    source.seen = True  # so that the end of the session does not tell it
