"""From initialize to shutdown: twice, too late, and with calls in flight."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import threading
import time
from contextlib import suppress
from importlib.metadata import entry_points
from typing import Any

import pytest

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import (
    AlreadyInitializedError,
    BackendError,
    CallTimeoutError,
    Lazy,
    NotInitializedError,
    TwinkleError,
    current_worker,
    initialize,
    on,
    remote_class,
    remote_function,
    session,
    shutdown,
    stats,
    submit,
)
from twinkle_remote.sessions.initialize import BackendOptions
from twinkle_remote.sessions.session import active, running

GROUPS = [DeviceGroup("four", 4, "CPU"), DeviceGroup("one", 1, "CPU")]
untyped: Any = initialize
TOLD: list[str] = []


@remote_class()
class Slow:
    def __init__(self) -> None:
        self.calls = 0

    @remote_function(dispatch="all", collect="first")
    def wait_for(self, event: threading.Event, begun: threading.Event | None = None) -> int:
        if begun is not None:
            begun.set()
        assert event.wait(20)
        self.calls += 1
        return self.calls

    @remote_function(dispatch="all", collect="first", timeout=0.05)
    def late(self, event: threading.Event) -> None:
        event.wait(20)

    @remote_function(dispatch="all", collect="first")
    def fail(self) -> None:
        raise KeyError("unseen")

    @remote_function(dispatch="all", collect="first")
    def fails_on(self, rank: int) -> int:
        if current_worker().rank == rank:
            raise KeyError("unseen")
        return 0

    @remote_function(dispatch="all", collect="first")
    def takes(self, value: object) -> object:
        return value

    @remote_function(dispatch="all", collect="first")
    def passes_on(self, event: threading.Event, other: Slow) -> int:
        assert event.wait(20)
        return other.wait_for(event)

    @remote_function(dispatch="all", collect="first")
    async def dreams(self, seconds: float) -> None:
        TOLD.append("begun")
        try:
            await asyncio.sleep(seconds)
        finally:
            await asyncio.sleep(0.05)
            TOLD.append("cleaned up")

    @remote_function(dispatch="all", collect="first")
    def shut(self) -> None:
        shutdown()


def test_twice_the_same_is_nothing_and_other_arguments_show_the_difference() -> None:
    with session("threads", groups=GROUPS):
        before = running()
        initialize("threads", groups=GROUPS)
        with session("threads", groups=GROUPS):
            assert running() is before
        assert running() is before
        with pytest.raises(AlreadyInitializedError, match=r"'threads' before, 'local' now.*shutdown\(\)"):
            initialize("local", groups=GROUPS)
        with pytest.raises(AlreadyInitializedError, match=r"start_timeout: None before, 3\.0 now"):
            initialize("threads", groups=GROUPS, start_timeout=3.0)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"mode": "rey"}, BackendError, "mode='rey' is not a backend: installed are .*'local'.*'threads'"),
        (
            {"mode": "threads", "save_failure": "here"},
            BackendError,
            "does not take save_failure; its options are start_timeout, .* of any session: groups, .*, save_failures$",
        ),
        ({"mode": "local", "groups": ["four"]}, TypeError, r"a list of DeviceGroup\(name, ranks, device_type\)"),
        ({"mode": "local", "groups": [GROUPS[0]] * 2}, ValueError, "'four' is there twice"),
    ],
)
def test_wrong_arguments_say_what_is_valid(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        untyped(**arguments)
    assert active() is None


def test_nothing_works_before_and_after() -> None:
    shutdown()
    for call in (lambda: on("four"), stats, lambda: untyped_slow(remote_group="four")):
        with pytest.raises(NotInitializedError, match="initialize"):
            call()
    with session("threads", groups=GROUPS):
        slow = on("four").create(Slow)
        event = threading.Event()
        event.set()
        fetched, unread = slow.wait_for(event), submit(slow.wait_for, event)
        assert fetched == 1
        unread.wait()
    for late in (slow.fail, unread.result, lambda: list(unread)):
        with pytest.raises(NotInitializedError, match=r"initialize|before the result of Slow.wait_for"):
            late()
    assert fetched == 1 and "Slow.wait_for" in repr(unread)
    shutdown()
    with (
        session("threads", groups=GROUPS),
        pytest.raises(NotInitializedError, match=r"four\[\d/4\] holds no 'Slow-.*build it again"),
    ):
        submit(slow.fail).result()


untyped_slow: Any = Slow


@remote_class()
class Hanging:
    def __init__(self, event: threading.Event) -> None:
        event.wait(20)


def test_shutdown_waits_for_calls_in_flight() -> None:
    event = threading.Event()
    with session("threads", groups=GROUPS):
        slow = on("four").create(Slow)
        slow.wait_for(event)
        threading.Timer(0.1, event.set).start()
        lazy = submit(slow.wait_for, event)
    assert lazy.done()


@pytest.mark.slow
def test_a_call_past_its_deadline_is_not_waited_for_and_is_an_error() -> None:
    event = threading.Event()
    began = time.monotonic()
    with (
        pytest.raises(CallTimeoutError, match=r"Slow\.late on four\[4\].*0\.05 s"),
        session("threads", groups=GROUPS, close_timeout=0.05),
    ):
        on("four").create(Slow).late(event)
    with session("threads", groups=GROUPS, close_timeout=0.05):
        late = submit(on("four").create(Slow).late, event)
        with pytest.raises(CallTimeoutError):
            late.result()
    assert time.monotonic() - began < 10 and active() is None
    event.set()


def test_an_error_ends_a_session_without_waiting(caplog: pytest.LogCaptureFixture) -> None:
    event = threading.Event()
    began = time.monotonic()

    def ends_by(error: BaseException) -> None:
        with session("threads", groups=GROUPS, close_timeout=0.05):
            begun = threading.Event()
            submit(on("one").create(Slow).wait_for, event, begun)
            assert begun.wait(20)
            raise error

    for error in (RuntimeError("mine"), SystemExit(3), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            ends_by(error)
    assert time.monotonic() - began < 10
    event.set()
    messages = [record.getMessage() for record in caplog.records]
    assert "threads still busy at shutdown, they end with the process: one[0/1]" in messages
    assert messages.count("shutdown: 1 call (Slow.wait_for) in flight, the results are lost") == 3


@pytest.mark.parametrize("seconds", [0.1, 600.0])
def test_coroutines_clean_up_at_a_normal_end_and_where_an_interrupt_cancels_them(seconds: float) -> None:
    def program() -> None:
        with session("threads", groups=GROUPS):
            submit(on("four").create(Slow).dreams, seconds)
            while TOLD.count("begun") < 4:
                time.sleep(0.001)
            if seconds > 1:
                raise KeyboardInterrupt

    TOLD.clear()
    with suppress(KeyboardInterrupt):
        program()
    assert TOLD == ["begun"] * 4 + ["cleaned up"] * 4


@pytest.mark.parametrize("code", [None, 0])
def test_sys_exit_with_0_is_a_normal_end(code: int | None) -> None:
    event = threading.Event()
    threading.Timer(0.1, event.set).start()
    made: list[Lazy[int]] = []

    def program() -> None:
        with session("threads", groups=GROUPS):
            made.append(submit(on("one").create(Slow).wait_for, event))
            sys.exit(code)

    with pytest.raises(SystemExit):
        program()
    assert made[0].done()


def test_what_a_failed_constructor_leaves_behind_holds_nothing_up() -> None:
    event = threading.Event()
    began = time.monotonic()
    with (
        session("threads", groups=GROUPS, start_timeout=0.1, close_timeout=0.05),
        pytest.raises(CallTimeoutError, match=r"Hanging.__init__"),
    ):
        on("one").create(Hanging, event)
    assert time.monotonic() - began < 10
    event.set()


def test_calls_of_workers_are_made_while_the_session_ends() -> None:
    event = threading.Event()
    threading.Timer(0.1, event.set).start()
    with session("threads", groups=GROUPS):
        outer, inner = on("one").create(Slow), on("four").create(Slow)
        lazy = submit(outer.passes_on, event, inner)
    assert lazy.done() and repr(lazy).endswith(", done>")


def test_waiting_ends_when_another_thread_ends_the_session() -> None:
    event = threading.Event()
    raised: list[BaseException] = []

    def wait(lazy: Lazy[int]) -> None:
        try:
            lazy.result()
        except TwinkleError as error:
            raised.append(error)

    def program() -> None:
        with session("threads", groups=GROUPS, close_timeout=0.05):
            waiting.append(threading.Thread(target=wait, args=[submit(on("one").create(Slow).wait_for, event)]))
            waiting[0].start()
            raise RuntimeError

    waiting: list[threading.Thread] = []
    with pytest.raises(RuntimeError):
        program()
    waiting[0].join(10)
    event.set()
    assert len(raised) == 1 and isinstance(raised[0], NotInitializedError)


def test_a_worker_cannot_shut_down() -> None:
    with session("threads", groups=GROUPS):
        with pytest.raises(TwinkleError, match=r"shutdown\(\)"):
            submit(on("one").create(Slow).shut).result()
        assert active() is not None


def test_failures_that_no_caller_has_seen_are_logged_once_and_raised_by_the_next_call_or_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if "no caller waited" in record.getMessage()]

    kept: list[Lazy[None]] = []

    def program() -> None:
        with session("threads", groups=GROUPS):
            slow = on("four", DeviceMesh.from_sizes(dp_size=4)).create(Slow)
            dropped = submit(slow.fail)
            while not dropped.done():
                time.sleep(0.001)
            assert told() == []
            del dropped
            assert len(told()) == 1 and "Slow.fail on four[" in told()[0] and "KeyError: 'unseen'" in told()[0]
            assert "test_initialize.py:" in told()[0]
            with pytest.raises(KeyError) as raised:
                slow.fail()
            assert raised.value.__notes__ == [
                "  nobody had taken the result of this call: the program's next call raises it"
            ]
            with pytest.raises(KeyError):
                submit(slow.fail).result()
            kept.extend([submit(slow.fail), submit(slow.fail)])
            submit(slow.fail)

    with pytest.raises(KeyError, match=r"Slow.fail failed on four\[[\s\S]*'unseen'") as raised:
        program()
    assert raised.value.__notes__ == [
        "  no caller had waited for this call when the session ended; 2 more like it are logged"
    ]
    assert len(told()) == 3 and repr(kept[0]).endswith(", failed>")
    kept.clear()
    assert len(told()) == 3
    assert all(record.levelno == logging.ERROR for record in caplog.records)


def test_a_failure_that_its_consumer_does_not_read_is_unseen() -> None:
    def program() -> None:
        with session("threads", groups=GROUPS):
            slow, other = on("four").create(Slow), on("one").create(Slow)
            assert submit(other.takes, submit(slow.fails_on, 3)).result() == 0

    with pytest.raises(KeyError, match=r"Slow.fails_on failed on four\[3/4\]"):
        program()


def test_many_threads_may_call_at_once() -> None:
    from concurrent.futures import ThreadPoolExecutor

    event = threading.Event()
    event.set()
    with session("threads", groups=GROUPS):
        slow = on("four").create(Slow)
        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(lambda _: submit(slow.wait_for, event).result(), range(200)))
    assert sorted(results) == list(range(1, 201))


def test_options_of_the_built_in_backends_are_known() -> None:
    taken = set()
    for mode in ("local", "threads", "ray", "http"):
        (entry,) = entry_points(group="twinkle.backends", name=mode)
        parameters = inspect.signature(entry.load()).parameters.values()
        taken |= {one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.name != "seed"}
    assert set(BackendOptions.__annotations__) == taken


@pytest.mark.parametrize("mode", ["local", "threads"])
def test_options_of_another_backend_have_no_effect(mode: str) -> None:
    others: dict[str, Any] = {"restart": "group", "address": "nowhere", "exchange_timeout": 60.0, "close_timeout": 1.0}
    with session(mode, groups=GROUPS, **others):
        assert stats() == []
