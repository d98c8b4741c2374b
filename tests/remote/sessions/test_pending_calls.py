"""Calls that nobody waits for: no more than there is room for, and never behind one that does not end."""

from __future__ import annotations

import threading
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING

import pytest
from tests.remote.signals import interrupted_at_step

from twinkle_remote import current_worker, get, on, remote_class, remote_function, submit
from twinkle_remote.lazy.lazy import call_of
from twinkle_remote.protocol.messages import MAX_IN_FLIGHT
from twinkle_remote.sessions.session import running

if TYPE_CHECKING:
    from twinkle_remote.call.pending import PendingCall

pytestmark = pytest.mark.usefixtures("threads")


@remote_class()
class Service:
    def __init__(self) -> None:
        self.calls = 0

    @remote_function(dispatch="all", collect="first")
    def serve(self, until: threading.Event) -> None:
        until.wait(60)

    @remote_function(dispatch="all", collect="first")
    def work(self) -> int:
        self.calls += 1
        return self.calls

    @remote_function(dispatch="all", collect="first")
    def many(self, other: Service, count: int) -> int:
        for _ in range(count):
            submit(other.work)
        return int(submit(other.work).result())


@remote_class()
class Broken:
    @remote_function(dispatch="all", collect="first")
    def fail(self) -> int:
        raise KeyError("no luck")

    @remote_function(dispatch="all")
    def fail_on_one(self, until: threading.Event) -> None:
        if current_worker().rank == 0:
            raise KeyError("no luck")
        until.wait(60)


def test_a_failure_that_was_dropped_is_raised_while_other_ranks_are_at_work() -> None:
    until, other = threading.Event(), on("one").create(Service)
    lazy = submit(on("two").create(Broken).fail_on_one, until)
    called = call_of(lazy)
    assert called.ends_within(60.0)
    del lazy
    with pytest.raises(KeyError, match="no luck"):
        other.work()
    assert not called.done()
    until.set()


def test_a_call_that_does_not_end_holds_up_nobody_else() -> None:
    until = threading.Event()
    serving = submit(on("one").create(Service).serve, until)
    other = on("two").create(Service)
    for _ in range(MAX_IN_FLIGHT + 200):
        submit(other.work)
    assert submit(other.work).result() == MAX_IN_FLIGHT + 201 and not serving.done()
    assert len(running().in_flight.calls()) <= MAX_IN_FLIGHT
    until.set()


@pytest.mark.slow
def test_a_worker_does_not_wait_for_the_call_that_it_is_in() -> None:
    inner, outer = on("two").create(Service), on("one").create(Service)
    assert submit(outer.many, inner, MAX_IN_FLIGHT + 10).result(timeout=60) == MAX_IN_FLIGHT + 11


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # raised at the end of a generator
def test_ctrl_c_at_any_step_of_a_wait_loses_no_failure_and_holds_up_no_end() -> None:
    broken = on("two").create(Broken)
    for step in count(1):
        lazy = submit(broken.fail)
        called = call_of(lazy)

        def wait(called: PendingCall = called) -> None:
            with suppress(KeyError):
                called.wait()

        was_interrupted = interrupted_at_step(step, wait)
        assert not running().in_flight.drain(5.0), step
        with pytest.raises(KeyError):
            get(lazy)
        running().in_flight.raise_first()
        if not was_interrupted:
            assert step > 50
            break
