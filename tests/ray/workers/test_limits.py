"""Programs that wait for limits, started together: calls of workers, constructors, messages, memory."""

from __future__ import annotations

import json
import os
import re
import signal
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.ray, pytest.mark.long]

CALLS = """
    import os, signal, sys, time
    from pathlib import Path
    import twinkle_remote as twinkle
    from twinkle_mesh import DeviceGroup

    FOLDER = Path(sys.argv[1])

    @twinkle.remote_class()
    class Actor:
        @twinkle.remote_function(dispatch="all")
        def save(self):
            time.sleep(1.5)
            (FOLDER / f"saved-{os.environ['RANK']}").touch()

        @twinkle.remote_function(dispatch="all")
        def fail(self):
            time.sleep(1.0)
            raise KeyError("unseen")

        @twinkle.remote_function(dispatch="all")
        def stall(self):
            time.sleep(600)

        @twinkle.remote_function(dispatch="all", timeout=1.0)
        def stall_late(self):
            time.sleep(600)

        @twinkle.remote_function(dispatch="all", timeout=1.0)
        def wait_for_another(self, other):
            twinkle.submit(other.stall).result()

    @twinkle.remote_class()
    class Driver:
        @twinkle.remote_function(dispatch="all", collect="first")
        def pid(self):
            return os.getpid()

        @twinkle.remote_function(dispatch="all")
        def call(self, actor, name):
            twinkle.submit(getattr(actor, name))

    if __name__ == "__main__":
        groups = [DeviceGroup("actor", 2, "CPU"), DeviceGroup("driver", 1, "CPU")]
        twinkle.initialize("ray", groups=groups)
        actor, driver = Actor(remote_group="actor"), Driver(remote_group="driver")
"""
"""Calls that workers make themselves, to the end of the session."""

OF_CALLS = {
    "save": """
        driver.call(actor, "save")
        print("MADE", flush=True)
    """,
    "fail": """
        driver.call(actor, "fail")
        print("MADE", flush=True)
    """,
    "late": """
        driver.call(actor, "stall_late")
        print("MADE", flush=True)
    """,
    "late caller": """
        late = actor.wait_for_another(Actor(remote_group="driver"))
        try:
            late.result()
        except TimeoutError:
            print("LATE", flush=True)
    """,
    "killed": """
        os.kill(driver.pid().result(), signal.SIGKILL)
        print("KILLED", flush=True)
    """,
    "dies": """
        driver.call(actor, "stall").result()
        pid = driver.pid().result()
        print("MADE", pid, flush=True)
    """,
}

CONSTRUCTORS = """
    import json, sys, time
    import twinkle_remote as twinkle
    from twinkle_mesh import DeviceGroup

    @twinkle.remote_class()
    class Model:
        def __init__(self, how):
            rank = twinkle.current_worker().rank
            if how == "hang" and rank == 1:
                time.sleep(600)
            if how == "raise" and rank == 1:
                raise ValueError("no weights")
            if how == "raise":
                time.sleep(600)

    if __name__ == "__main__":
        how = sys.argv[1]
        twinkle.initialize("ray", groups=[DeviceGroup("actor", 2, "CPU")], start_timeout=240)
        twinkle.sessions.current.running().backend.start_timeout = 3 if how == "hang" else 120
        kind = ""
        while not kind:
            try:
                Model(how, remote_group="actor")
            except (twinkle.TwinkleError, ValueError) as error:
                kind = type(error).__name__
        print("KIND", kind, flush=True)
        began = time.monotonic()
        twinkle.shutdown()
        print("SECONDS", json.dumps(time.monotonic() - began), flush=True)
"""
KINDS = {"hang": "CallTimeoutError", "raise": "ValueError", "lost": "ReplyLostError"}

MESSAGES = """
    import collections
    import twinkle_remote as twinkle
    from twinkle_mesh import DeviceGroup

    if __name__ == "__main__":

        @twinkle.remote_class()
        class Counts:
            def __init__(self):
                self.seen = collections.Counter()

            @twinkle.remote_function(dispatch="all")
            def step(self):
                self.seen["step"] += 1
                return "step"

            @twinkle.remote_function(dispatch="all")
            def add(self, number):
                self.seen[number] += 1
                return number

            @twinkle.remote_function(dispatch="all")
            def read(self):
                return dict(self.seen)

        def until_it_works(function):
            while True:
                try:
                    return function()
                except twinkle.ReplyLostError:
                    continue

        twinkle.initialize("ray", groups=[DeviceGroup("actor", 2, "CPU")], lazy_collect=False)
        counts = until_it_works(lambda: Counts(remote_group="actor"))
        failed = 0
        for number in range(4):
            for name, call in ((number, lambda: counts.add(number)), ("step", counts.step), ("step", counts.step)):
                try:
                    assert call() == [name, name]
                except twinkle.ReplyLostError as error:
                    assert "lives, but its answer to" in str(error) and "may or may not have run" in str(error)
                    failed += 1
        for seen in until_it_works(counts.read):
            steps = seen.pop("step")
            assert steps <= 8 and set(seen.values()) == {1}, (steps, seen)
        print("FAILED", failed)
        twinkle.shutdown(0)
"""
SLOW = """
    import twinkle_remote as twinkle
    from twinkle_mesh import DeviceGroup, DeviceMesh

    @twinkle.remote_class()
    class Counter:
        def __init__(self, device_mesh):
            self.calls = 0

        @twinkle.remote_function(dispatch="all")
        def run(self):
            self.calls += 1
            return self.calls

    if __name__ == "__main__":
        twinkle.initialize("ray", groups=[DeviceGroup("actor", 2, "CPU")], lazy_collect=False)
        counter = Counter(remote_group="actor", device_mesh=DeviceMesh.from_sizes(tp_size=2))
        calls = [twinkle.submit(counter.run) for _ in range(5)]
        assert [call.result(30) for call in calls] == [[i, i] for i in range(1, 6)]
        twinkle.shutdown(0)
"""


LIMITED = """
    import resource
    import twinkle_remote as twinkle
    from program_tools import report
    from twinkle_mesh import DeviceGroup

    if __name__ == "__main__":
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
        report("TOLD", lambda: twinkle.initialize("ray", groups=[DeviceGroup("actor", 2, "CPU")]))
        twinkle.initialize("threads", groups=[DeviceGroup("actor", 2, "CPU")])
        twinkle.shutdown()
"""
"""A driver whose cluster has no memory: Ray waits for half a minute for a node."""


def lossy(requests: int, replies: int) -> dict[str, str]:
    """Variables of a program: the percents of the messages to workers, and of their answers, that Ray loses."""
    losses = {"num_failures": -1, "req_failure_prob": requests, "resp_failure_prob": replies}
    return {"RAY_testing_rpc_failure": json.dumps({"CoreWorkerService.grpc_client.PushTask": losses})}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("saved")


@pytest.fixture(scope="module")
def running(joined_programs: Callable[..., Any], programs: Callable[..., Any], folder: Path) -> dict[str, Any]:
    """All programs, two of them on clusters of their own; those that wait longest begin first."""
    started = {"messages": joined_programs(MESSAGES, **lossy(15, 15)), "limited": programs(LIMITED)}
    delays = "CoreWorkerService.grpc_server.PushTask=50000:150000"
    started["slow"] = programs(SLOW, RAY_testing_asio_delay_us=delays)
    for how in KINDS:
        started[how] = joined_programs(CONSTRUCTORS, how, **(lossy(0, 15) if how == "lost" else {}))
    return started | {name: joined_programs(CALLS + source, str(folder)) for name, source in OF_CALLS.items()}


def test_a_program_ends_when_the_calls_of_its_workers_are_done(running: dict[str, Any], folder: Path) -> None:
    run = running["save"]
    run.line("MADE", 90)
    run.finish(90)
    assert sorted(path.name for path in folder.glob("saved-*")) == ["saved-0", "saved-1"]


def test_a_failure_in_a_call_of_a_worker_is_the_exit_status(running: dict[str, Any]) -> None:
    run = running["fail"]
    run.line("MADE", 90)
    assert run.process.wait(90) == 1
    run.line("KeyError: Actor.fail failed on actor[", 10)
    line = run.line("  called from ", 10)
    assert line.endswith(" on driver[0/1]") and re.search(r"program\d\.py:", line)
    run.line("  no caller had waited for this call when the session ended", 10)


def test_a_late_call_of_a_worker_holds_up_no_end_and_is_raised(running: dict[str, Any]) -> None:
    run = running["late"]
    run.line("MADE", 90)
    assert run.process.wait(90) == 1
    line = run.line("twinkle_remote.errors.CallTimeoutError: Actor.stall_late on actor[2] is not done after 1 s", 10)
    assert "ranks [0, 1] are not" in line
    assert run.line("  called from ", 10).endswith(" on driver[0/1]")


def test_what_a_late_call_has_called_holds_up_no_end(running: dict[str, Any]) -> None:
    run = running["late caller"]
    run.line("LATE", 90)
    said = run.finish(60)
    assert "driver[0/1] may run what a call that failed or is past its deadline, or a lost worker, has called" in said


def test_a_worker_that_died_holds_up_no_end(running: dict[str, Any]) -> None:
    run = running["killed"]
    run.line("KILLED", 90)
    assert "driver[0/1] died: it is not known whether it had its own calls in flight" in run.finish(60)


def test_a_worker_that_dies_with_calls_of_its_own_is_the_exit_status(running: dict[str, Any]) -> None:
    run = running["dies"]
    pid = int(run.line("MADE", 90))
    run.line("the session ends when", 60)
    os.kill(pid, signal.SIGKILL)
    assert run.process.wait(90) == 1
    run.line("twinkle_remote.errors.WorkerDiedError: driver[0/1] died during", 10)


@pytest.mark.parametrize("how", KINDS)
def test_a_session_ends_soon_after_a_failed_constructor(running: dict[str, Any], how: str) -> None:
    run = running[how]
    assert run.line("KIND ", 200) == KINDS[how]
    assert float(run.line("SECONDS ", 60)) < 20
    out = run.finish(30)
    assert "lost at" not in out and "results are lost" not in out and "no caller" not in out, out


def test_lost_requests_and_replies_run_nothing_twice(running: dict[str, Any]) -> None:
    out = running["messages"].finish(270)
    assert int(out.partition("FAILED ")[2].split()[0]) > 0


def test_slow_messages_change_nothing(running: dict[str, Any]) -> None:
    running["slow"].finish(110)


def test_a_driver_under_a_limit_of_memory_is_told_so(running: dict[str, Any]) -> None:
    limited = running["limited"]
    told = limited.report("TOLD", 110)
    assert told["kind"] == "BackendError" and told["seconds"] < 100
    assert "Ray's cluster did not start: " in told["text"]
    assert "; RLIMIT_AS is 3221225472 bytes of address space (`ulimit -v`)" in told["text"]
    limited.finish(30)


def test_nothing_is_left_of_them(running: dict[str, Any]) -> None:
    assert [run.left_over(30) for run in running.values()] == [[]] * len(running)
