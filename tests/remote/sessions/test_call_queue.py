"""So many calls are in flight at most, and making one more waits; what was dropped or interrupted loses no failure."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from tests.remote.signals import interrupted_at_step

from twinkle_mesh import DeviceGroup
from twinkle_remote import (
    CallTimeoutError,
    current_worker,
    get,
    initialize,
    on,
    remote_class,
    remote_function,
    session,
    submit,
)
from twinkle_remote.lazy.lazy import call_of
from twinkle_remote.sessions.session import running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twinkle_remote.call.pending import PendingCall

LIMIT = 4
GROUPS = [DeviceGroup("one", 1, "CPU"), DeviceGroup("two", 2, "CPU")]
untyped: Any = initialize


@remote_class()
class Service:
    def __init__(self) -> None:
        self.calls = 0

    @remote_function(dispatch="all", collect="first")
    def serve(self, until: threading.Event) -> None:
        until.wait(60)

    @remote_function(dispatch="all", collect="first", timeout=0.05)
    def late(self, until: threading.Event) -> None:
        until.wait(60)

    @remote_function(dispatch="all", collect="first")
    def work(self) -> int:
        self.calls += 1
        return self.calls

    @remote_function(dispatch="all", collect="first", timeout=0.1)
    def impatient(self) -> None:
        pass

    @remote_function(dispatch="all", collect="first")
    async def work_later(self, me: Service) -> None:
        for _ in range(LIMIT + 1):
            submit(me.work)


@pytest.fixture
def service() -> Iterator[Service]:
    with session("threads", groups=GROUPS, max_in_flight=LIMIT):
        yield on("one").create(Service)


def test_callers_wait_for_room_in_the_group_that_they_call(service: Service) -> None:
    until = threading.Event()
    submit(service.serve, until)
    other = on("two").create(Service)
    for _ in range(3 * LIMIT):  # another group has room
        submit(other.work)
    threading.Timer(0.1, until.set).start()
    made = []
    for _ in range(3 * LIMIT):
        made.append(submit(service.work))
        assert len(running().in_flight.calls()) <= 2 * LIMIT
    assert until.is_set() and [one.result() for one in made] == list(range(1, 3 * LIMIT + 1))


def test_a_call_that_finds_no_room_in_its_time_is_not_sent(service: Service) -> None:
    until = threading.Event()
    for _ in range(LIMIT):
        submit(service.serve, until)
    with pytest.raises(CallTimeoutError, match=r"Service\.impatient .*0\.1 s: 4 calls"):
        service.impatient()
    until.set()
    assert submit(service.work).result() == 1


def test_calls_past_their_deadline_take_no_room(service: Service) -> None:
    until = threading.Event()
    for _ in range(LIMIT):
        with pytest.raises(CallTimeoutError):
            submit(service.late, until).result()
    last = submit(service.work)
    until.set()
    assert last.result() == 1


def test_a_worker_that_calls_itself_does_not_wait_for_room(service: Service) -> None:
    submit(service.work_later, service).result(timeout=30)
    assert submit(service.work).result() >= 1


def test_in_an_event_loop_waiting_says_that_the_loop_is_blocked(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    until = threading.Event()

    async def make() -> None:
        for _ in range(LIMIT + 1):
            submit(service.serve, until)

    threading.Timer(0.1, until.set).start()
    asyncio.run(make())
    (message,) = (record.getMessage() for record in caplog.records)
    assert message.startswith("Service.serve waits: 4 calls to group 'one' are in flight, as many as max_in_flight")
    assert message.endswith("the event loop is blocked meanwhile: await results before more calls are made")


@pytest.mark.parametrize("limit", [0, -1, True, 2.0, None])
def test_a_limit_is_a_number_of_calls(limit: Any) -> None:
    with pytest.raises(ValueError, match=r"max_in_flight=.* 1"):
        untyped("threads", groups=GROUPS, max_in_flight=limit)


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


@pytest.mark.usefixtures("threads")
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


@pytest.mark.usefixtures("threads")
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
