"""From initialize to shutdown: twice, too late, with calls in flight, and at the end of a program."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import textwrap
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import (
    AlreadyInitializedError,
    BackendError,
    NotInitializedError,
    TwinkleError,
    initialize,
    on,
    remote_class,
    remote_function,
    session,
    shutdown,
    stats,
    submit,
)
from twinkle_remote.sessions.runtime import active, running

if TYPE_CHECKING:
    from pathlib import Path

GROUPS = [DeviceGroup("four", 4, "CPU"), DeviceGroup("one", 1, "CPU")]
untyped: Any = initialize


@remote_class()
class Slow:
    def __init__(self) -> None:
        self.calls = 0

    @remote_function(dispatch="all", collect="first")
    def wait_for(self, event: threading.Event) -> int:
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
    def shut(self) -> None:
        shutdown()


def test_twice_the_same_is_nothing_and_other_arguments_show_the_difference() -> None:
    with session("threads", groups=GROUPS):
        before = running()
        initialize("threads", groups=GROUPS)
        with session("threads", groups=GROUPS):
            assert running() is before
        assert running() is before
        with pytest.raises(AlreadyInitializedError, match=r"mode: 'threads' before, 'local' now.*shutdown\(\) first"):
            initialize("local", groups=GROUPS)
        with pytest.raises(AlreadyInitializedError, match=r"start_timeout: None before, 3\.0 now"):
            initialize("threads", groups=GROUPS, start_timeout=3.0)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"mode": "rey"}, BackendError, "mode='rey' is not a backend: installed are .*'local'.*'threads'"),
        ({"mode": "threads", "start": 1}, BackendError, "does not take start; its options are start_timeout"),
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


def test_shutdown_waits_for_calls_in_flight() -> None:
    event = threading.Event()
    with session("threads", groups=GROUPS):
        slow = on("four").create(Slow)
        slow.wait_for(event)
        threading.Timer(0.1, event.set).start()
        lazy = submit(slow.wait_for, event)
    assert lazy.done()


def test_shutdown_does_not_wait_for_what_is_late_or_after_an_error(caplog: pytest.LogCaptureFixture) -> None:
    event = threading.Event()
    began = time.monotonic()
    with session("threads", groups=GROUPS, close_timeout=0.05):
        late = on("four").create(Slow)
        late.late(event)
        time.sleep(0.06)

    def fails() -> None:
        with session("threads", groups=GROUPS, close_timeout=0.05):
            submit(on("one").create(Slow).wait_for, event)
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        fails()
    assert time.monotonic() - began < 10
    event.set()
    messages = [record.getMessage() for record in caplog.records]
    assert "threads still busy at shutdown, they end with the process: four[0/4], four[1/4], four[2/4], four[3/4]" in (
        messages
    )
    assert "shutdown: 1 call (Slow.wait_for) in flight, the results are lost" in messages


def test_waiting_ends_when_another_thread_shuts_down() -> None:
    event = threading.Event()
    initialize("threads", groups=GROUPS, close_timeout=0.05)
    lazy = submit(on("one").create(Slow).wait_for, event)
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            lazy.result()
        except TwinkleError as error:
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    shutdown(drain=0.0)
    waiting.join(10)
    event.set()
    assert len(raised) == 1 and isinstance(raised[0], NotInitializedError)


def test_a_worker_cannot_shut_down() -> None:
    with session("threads", groups=GROUPS):
        with pytest.raises(TwinkleError, match=r"shutdown\(\) is for the program that called initialize"):
            submit(on("one").create(Slow).shut).result()
        assert active() is not None


def test_failures_that_nobody_looks_at_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if "nobody waited" in record.getMessage()]

    with session("threads", groups=GROUPS):
        slow = on("four", DeviceMesh.from_sizes(dp_size=4)).create(Slow)
        dropped = submit(slow.fail)
        while not dropped.done():
            time.sleep(0.001)
        assert told() == []
        del dropped
        assert len(told()) == 1 and "Slow.fail on four[" in told()[0] and "KeyError: 'unseen'" in told()[0]
        assert "test_runtime.py:" in told()[0]
        slow.fail()
        with pytest.raises(KeyError):
            submit(slow.fail).result()
        kept = submit(slow.fail)
    assert len(told()) == 3 and repr(kept).endswith(", failed>")
    del kept
    assert len(told()) == 3
    assert all(record.levelno == logging.ERROR for record in caplog.records)


def run(source: str, path: Path, *, interrupt: bool = False) -> subprocess.CompletedProcess[str]:
    """A program of its own; interrupted when it says that it waits."""
    file = path / "program.py"
    file.write_text(HEAD + textwrap.dedent(source))
    process = subprocess.Popen(
        [sys.executable, "-u", str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=path
    )
    try:
        if interrupt:
            assert process.stdout is not None and process.stdout.readline() == "waiting\n"
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


HEAD = """
import threading, time
from pathlib import Path
import twinkle_remote as twinkle
from twinkle_mesh import DeviceGroup, DeviceMesh

@twinkle.remote_class()
class Actor:
    @twinkle.remote_function(dispatch="all", collect="first")
    def save(self, path):
        time.sleep(0.2)
        Path(path + str(twinkle.current_worker().rank)).write_text("saved")

    @twinkle.remote_function(dispatch="slice_dp", collect="mean")
    def update(self, batch):
        weights = {"w": 1.0}
        return weights["bias"] if twinkle.current_worker().rank == 2 else 1.0

    @twinkle.remote_function(dispatch="all", collect="first")
    def sleep(self):
        threading.Event().wait(60)

twinkle.initialize("threads", groups=[DeviceGroup("actor", 4, "CPU")], close_timeout=0.1)
actor = twinkle.on("actor", DeviceMesh.from_sizes(dp_size=2, tp_size=2)).create(Actor)
"""


def test_the_last_call_of_a_program_is_not_lost(tmp_path: Path) -> None:
    done = run("actor.update([1, 2]); actor.save('checkpoint-')", tmp_path)
    assert done.returncode == 0
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == [f"checkpoint-{rank}" for rank in range(4)]
    assert done.stderr.count("nobody waited for it: Actor.update on actor[2/4 dp=1 tp=0]: KeyError: 'bias'") == 1


def test_an_interrupt_ends_a_program_that_waits(tmp_path: Path) -> None:
    began = time.monotonic()
    done = run("lazy = actor.sleep(); print('waiting'); lazy.result()", tmp_path, interrupt=True)
    assert done.returncode != 0 and "KeyboardInterrupt" in done.stderr and time.monotonic() - began < 30


def test_one_failing_call_prints_what_a_user_can_act_on(tmp_path: Path) -> None:
    done = run('metrics = actor.update([1, 2, 3])\nprint(f"loss {metrics:.3f}")', tmp_path)
    lines = done.stderr.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("KeyError: "))
    assert lines[first].startswith("KeyError: Actor.update failed on actor[2/4 dp=1 tp=0] (node ")
    assert lines[first].endswith("): KeyError: 'bias'")
    assert lines[first + 1].startswith("  called from ") and "program.py:" in lines[first + 1]
    assert lines[first + 2] == "  on the worker:" and 'return weights["bias"]' in done.stderr
    machinery = [line for line in lines if "/twinkle_remote/" in line]
    assert len(machinery) <= 2, done.stderr


def test_everything_is_importable_without_heavy_libraries() -> None:
    program = "import sys, twinkle_remote.conformance; print(sorted({'torch', 'numpy', 'ray'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_many_threads_may_call_at_once() -> None:
    from concurrent.futures import ThreadPoolExecutor

    event = threading.Event()
    event.set()
    with session("threads", groups=GROUPS):
        slow = on("four").create(Slow)
        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(lambda _: submit(slow.wait_for, event).result(), range(200)))
    assert sorted(results) == list(range(1, 201))
