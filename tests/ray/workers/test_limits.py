"""Programs that wait for limits, started together: calls of workers, constructors, messages, memory."""

from __future__ import annotations

import json
import os
import re
import signal
from functools import partial
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
    "dies": """
        pid = driver.pid().result()
        driver.call(actor, "stall")
        print("MADE", pid, flush=True)
    """,
}

CONSTRUCTORS = """
    import json, sys, time
    import twinkle_remote as twinkle
    from twinkle_mesh import DeviceGroup

    @twinkle.remote_class()
    class Model:
        def __init__(self):
            if twinkle.current_worker().rank == 1:
                time.sleep(600)

    if __name__ == "__main__":
        twinkle.initialize("ray", groups=[DeviceGroup("actor", 2, "CPU")], start_timeout=240)
        twinkle.sessions.current.running().backend.start_timeout = 3
        try:
            Model(remote_group="actor")
        except twinkle.CallTimeoutError:
            print("LATE", flush=True)
        began = time.monotonic()
        twinkle.shutdown()
        print("SECONDS", json.dumps(time.monotonic() - began), flush=True)
"""

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
# Ray loses so many percents of the answers of workers. A request that it loses holds up the next one for 30 s.
LOSSES = {"num_failures": -1, "req_failure_prob": 0, "resp_failure_prob": 30}
LOSSY = {"RAY_testing_rpc_failure": json.dumps({"CoreWorkerService.grpc_client.PushTask": LOSSES})}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("saved")


class Programs(dict[str, Any]):
    """Programs by name, each started where it is first used: the starts of all at once take the processors for minutes.

    Args:
        starts: What starts each.
    """

    def __init__(self, **starts: Callable[[], Any]) -> None:
        self._starts = starts

    def __missing__(self, name: str) -> Any:
        self[name] = self._starts[name]()
        return self[name]


@pytest.fixture(scope="module")
def of_calls(joined_programs: Callable[..., Any], folder: Path) -> Programs:
    """The programs whose workers make calls."""
    return Programs(
        **{name: partial(joined_programs, CALLS + source, str(folder)) for name, source in OF_CALLS.items()}
    )


@pytest.fixture(scope="module")
def running(joined_programs: Callable[..., Any]) -> Programs:
    """The other programs."""
    return Programs(
        messages=partial(joined_programs, MESSAGES, **LOSSY),
        hang=partial(joined_programs, CONSTRUCTORS),
    )


def test_a_program_ends_when_the_calls_of_its_workers_are_done(of_calls: Programs, folder: Path) -> None:
    run = of_calls["save"]
    run.line("MADE", 90)
    run.finish(90)
    assert sorted(path.name for path in folder.glob("saved-*")) == ["saved-0", "saved-1"]


def test_a_failure_in_a_call_of_a_worker_is_the_exit_status(of_calls: Programs) -> None:
    run = of_calls["fail"]
    run.line("MADE", 90)
    assert run.process.wait(300) == 1
    assert "KeyError: Actor.fail failed on actor[" in run.line("KeyError: Driver.call failed on driver[0/1]", 10)
    line = run.line("      called from ", 10)
    assert line.endswith(" on driver[0/1]") and re.search(r"program\d\.py:", line)
    run.line("  no caller had waited for this call when the session ended", 10)


def test_a_late_call_of_a_worker_holds_up_no_end_and_is_raised(of_calls: Programs) -> None:
    run = of_calls["late"]
    run.line("MADE", 90)
    assert run.process.wait(300) == 1
    line = run.line("twinkle_remote.errors.CallTimeoutError: Driver.call failed on driver[0/1]", 10)
    assert "Actor.stall_late on actor[2] is not done after 1 s" in line and "ranks [0, 1] are not" in line
    assert run.line("  called from ", 10).endswith(" on driver[0/1]")


def test_a_worker_that_dies_while_it_waits_for_its_own_call_is_the_exit_status(of_calls: Programs) -> None:
    run = of_calls["dies"]
    pid = int(run.line("MADE", 90))
    run.line("the session ends when", 60)
    os.kill(pid, signal.SIGKILL)
    assert run.process.wait(300) == 1
    run.line("twinkle_remote.errors.WorkerDiedError: driver[0/1] died during", 10)


def test_a_session_ends_soon_after_a_constructor_that_hangs(running: Programs) -> None:
    run = running["hang"]
    run.line("LATE", 200)
    assert float(run.line("SECONDS ", 60)) < 60
    out = run.finish(30)
    assert "lost at" not in out and "results are lost" not in out and "no caller" not in out, out


def test_lost_replies_run_nothing_twice(running: Programs) -> None:
    out = running["messages"].finish(270)
    assert int(out.partition("FAILED ")[2].split()[0]) > 0


def test_nothing_is_left_of_them(of_calls: Programs, running: Programs) -> None:
    runs = [*of_calls.values(), *running.values()]
    assert [run.left_over(30) for run in runs] == [[]] * len(runs)
