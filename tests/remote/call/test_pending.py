"""What a call knows of the calls behind it: a failure is told once, and who waits for a late call is late."""

from __future__ import annotations

import logging
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.remote.made_calls import made_call

from twinkle_mesh import DeviceGroup
from twinkle_remote import CallTimeoutError, RemoteCallError, get, on, remote_class, remote_function, session, submit
from twinkle_remote.call import pending as call_pending
from twinkle_remote.call.pending import PendingCall
from twinkle_remote.lazy.lazy import call_of
from twinkle_remote.protocol.backend import Reply
from twinkle_remote.protocol.messages import Failure, Outcome
from twinkle_remote.protocol.spec import FunctionSpec
from twinkle_remote.sessions.session import running
from twinkle_remote.sessions.telemetry import CallRecord

if TYPE_CHECKING:
    from collections.abc import Sequence


@remote_class()
class Waits:
    @remote_function(dispatch="all", collect="first")
    def rest(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds


def pending(name: str, replies: Sequence[Reply], sources: Sequence[PendingCall] = ()) -> PendingCall:
    """A call whose replies the test completes."""
    runtime = running()
    record = CallRecord(name, "two", len(replies))
    made = made_call(name, FunctionSpec(), [reply.rank for reply in replies])
    call = PendingCall(runtime, made, replies, record, sources, held=True)
    call.listen()
    return call


def failed(reply: Reply, *, upstream: bool) -> None:
    """Complete a reply with a failure."""
    failure = Failure("two[0/2]", "node", "KeyError", "'x'", upstream=upstream)
    reply.answer(Outcome(reply.rank, failure=failure))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("seconds", [0.0, 0.2])
def test_the_cause_may_arrive_after_what_follows_from_it(seconds: float) -> None:
    ours, theirs = [Reply(0), Reply(1)], [Reply(0), Reply(1)]
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
    ours, theirs = [Reply(0)], [Reply(0)]
    source = pending("Rows.fail", theirs)
    call = pending("Rows.take", ours, [source])
    failed(ours[0], upstream=False)
    with pytest.raises(RemoteCallError, match="'x'"):
        call.wait()
    failed(theirs[0], upstream=False)
    assert source.done() and source.unseen()
    source.seen = True  # so that the end of the session does not tell it


@pytest.mark.usefixtures("threads")
def test_who_finds_a_call_done_at_any_step_finds_its_failure() -> None:
    ours = [Reply(0)]
    call, silent = pending("Rows.fail", ours), list[bool]()

    def look(*_: object) -> Any:
        silent.append(call.done() and not call.failed())
        return look

    sys.settrace(look)
    try:
        failed(ours[0], upstream=False)
    finally:
        sys.settrace(None)
    assert call.failed() and not any(silent)
    call.seen = True  # so that the end of the session does not tell it


@remote_class()
class Steps:
    """Steps of a chain; those that wait go on when the test ends."""

    gate = threading.Event()

    @remote_function(dispatch="all", collect="first")
    def fail(self, what: str) -> str:
        raise KeyError(what)

    @remote_function(dispatch="all", collect="first")
    def take(self, *values: str) -> str:
        return values[0]

    @remote_function(dispatch="all", collect="first", timeout=0.2)
    def stall(self) -> str:
        self.gate.wait(60.0)
        return "late"


GROUPS = [DeviceGroup("one", 1, "CPU"), DeviceGroup("two", 2, "CPU")]


def test_a_call_in_flight_keeps_none_of_its_arguments() -> None:
    with session("threads", groups=GROUPS):
        one, two = on("one").create(Steps), on("two").create(Steps)
        for lazy in (submit(two.take, "given", "more"), submit(one.take, submit(two.take, "given").hand_over())):
            assert get(lazy) == "given" and not call_of(lazy).call.args and call_of(lazy).call.name == "Steps.take"


@pytest.mark.parametrize("seen", [0, 1, 3])
def test_a_failure_is_told_once_at_any_distance(seen: int, caplog: pytest.LogCaptureFixture) -> None:
    with session("threads", groups=GROUPS):
        one, two = on("one").create(Steps), on("two").create(Steps)
        made = [one.fail("x")]
        for number in range(4):
            made.append((two, one)[number % 2].take(made[-1]))
        with pytest.raises(KeyError, match=r"Steps\.fail failed"):
            get(made[seen])
        made.clear()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_second_failure_behind_a_call_is_not_lost() -> None:
    def program() -> None:
        with session("threads", groups=GROUPS):
            one, two = on("one").create(Steps), on("two").create(Steps)
            first, second = submit(one.fail, "first"), submit(one.fail, "second")
            while not (first.done() and second.done()):
                time.sleep(0.001)
            with pytest.raises(KeyError, match="first"):
                get(two.take(first.hand_over(), second.hand_over()))

    with pytest.raises(KeyError, match="second"):
        program()


def test_many_that_follow_take_no_place_of_a_failure() -> None:
    def program() -> None:
        with session("threads", groups=GROUPS):
            one, two = on("one").create(Steps), on("two").create(Steps)
            first = one.fail("first")
            made = [submit(two.take, first) for _ in range(300)]
            made.append(submit(two.fail, "second"))
            while not all(one.done() for one in made):
                time.sleep(0.001)
            while made:
                made.pop(0)
            with pytest.raises(KeyError, match="first"):
                get(first)

    with pytest.raises(KeyError, match="second"):
        program()


def test_a_long_chain_fails_with_its_cause() -> None:
    with session("threads", groups=GROUPS, max_in_flight=10_000):
        one, two = on("one").create(Steps), on("two").create(Steps)
        value = one.fail("x")
        for number in range(2_000):
            value = (two, one)[number % 2].take(value)
        with pytest.raises(KeyError, match=r"Steps\.take did not run.*Steps\.fail"):
            get(value)


@pytest.mark.slow
def test_a_call_behind_a_late_one_is_late() -> None:
    Steps.gate.clear()
    try:
        began = time.monotonic()
        with session("threads", groups=GROUPS, close_timeout=0.1):
            one, two = on("one").create(Steps), on("two").create(Steps)
            last = one.take(two.take(one.stall()))
            with pytest.raises(CallTimeoutError, match=r"Steps\.stall on one"):
                get(last)
        assert time.monotonic() - began < 30.0
    finally:
        Steps.gate.set()


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("steps", ["see cancel", "cancel see", "cancel", "see cancel cancel", "cancel see cancel"])
def test_a_failure_that_a_caller_has_counts_as_seen_though_the_call_was_cancelled(steps: str) -> None:
    replies = [Reply(0), Reply(1)]
    call = pending("Rows.fail", replies)
    failed(replies[0], upstream=False)
    for step in steps.split():
        if step == "see":
            with pytest.raises(RemoteCallError, match="KeyError"):
                call.wait()
        else:
            call.cancel()
    failed(replies[1], upstream=False)
    assert call.done() and call.unseen() == (steps == "cancel")
    call.seen = True


@pytest.mark.usefixtures("threads")
def test_a_long_wait_says_once_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(call_pending, "SLOW_SECONDS", 0.1)
    asks = on("two").create(Waits)
    assert get(asks.rest(0.5)) == 0.5
    (message,) = caplog.messages
    assert "Waits.rest on two[2] is not done after 0.1 s" in message and "time.sleep(seconds)" in message
