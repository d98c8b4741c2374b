"""The calls that workers make themselves, to the end of the session and with its defaults."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

import twinkle_remote as twinkle
from twinkle_mesh import DeviceGroup
from twinkle_ray import restart
from twinkle_remote import remote_class, remote_function
from twinkle_remote.sessions.current import running

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.ray, pytest.mark.long]

PROGRAM = """
    import os, signal, sys, time
    from pathlib import Path
    import twinkle_remote as twinkle
    from twinkle_mesh import DeviceGroup

    FOLDER = Path.cwd()

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


def test_a_program_ends_when_the_calls_of_its_workers_are_done(
    joined_program: Callable[..., Any], tmp_path: Path
) -> None:
    run = joined_program(PROGRAM + '        driver.call(actor, "save")\n        print("MADE", flush=True)\n')
    run.line("MADE", 90)
    run.finish(90)
    assert sorted(path.name for path in tmp_path.glob("saved-*")) == ["saved-0", "saved-1"]
    assert run.left_over(30) == []


def test_a_failure_in_a_call_of_a_worker_is_the_exit_status(joined_program: Callable[..., Any]) -> None:
    run = joined_program(PROGRAM + '        driver.call(actor, "fail")\n        print("MADE", flush=True)\n')
    run.line("MADE", 90)
    assert run.process.wait(90) == 1
    run.line("KeyError: Actor.fail failed on actor[", 10)
    line = run.line("  called from ", 10)
    assert line.endswith(" on driver[0/1]") and "program0.py:" in line
    run.line("  no caller had waited for this call when the session ended", 10)


def test_a_late_call_of_a_worker_holds_up_no_end_and_is_raised(joined_program: Callable[..., Any]) -> None:
    run = joined_program(PROGRAM + '        driver.call(actor, "stall_late")\n        print("MADE", flush=True)\n')
    run.line("MADE", 90)
    assert run.process.wait(90) == 1
    line = run.line("twinkle_remote.errors.CallTimeoutError: Actor.stall_late on actor[2] is not done after 1 s", 10)
    assert "ranks [0, 1] are not" in line
    assert run.line("  called from ", 10).endswith(" on driver[0/1]")


def test_what_a_late_call_has_called_holds_up_no_end(joined_program: Callable[..., Any]) -> None:
    source = """
        late = actor.wait_for_another(Actor(remote_group="driver"))
        try:
            late.result()
        except TimeoutError:
            print("LATE", flush=True)
    """
    made = PROGRAM.replace(
        'DeviceGroup("driver", 1, "CPU")]', 'DeviceGroup("driver", 1, "CPU"), DeviceGroup("b", 1, "CPU")]'
    )
    run = joined_program(made + '        driver_2 = Actor(remote_group="b")\n' + source)
    run.line("LATE", 90)
    said = run.finish(60)
    assert "driver[0/1] may run what a call that failed or is past its deadline, or a lost worker, has called" in said


def test_a_worker_that_died_holds_up_no_end(joined_program: Callable[..., Any]) -> None:
    run = joined_program(
        PROGRAM + '        os.kill(driver.pid().result(), signal.SIGKILL)\n        print("KILLED", flush=True)\n'
    )
    run.line("KILLED", 90)
    assert "driver[0/1] died: it is not known whether it had its own calls in flight" in run.finish(60)


def test_a_worker_that_dies_with_calls_of_its_own_is_the_exit_status(joined_program: Callable[..., Any]) -> None:
    source = """
        driver.call(actor, "stall").result()
        pid = driver.pid().result()
        print("MADE", pid, flush=True)
    """
    run = joined_program(PROGRAM + source)
    pid = int(run.line("MADE", 90))
    run.line("the session ends when", 60)
    os.kill(pid, signal.SIGKILL)
    assert run.process.wait(90) == 1
    run.line("twinkle_remote.errors.WorkerDiedError: driver[0/1] died during", 10)


@remote_class()
class Inner:
    """Tells what the session on its worker is like."""

    @remote_function(dispatch="all", collect="first")
    def defaults(self) -> tuple[bool, int]:
        runtime = running()
        return runtime.lazy_collect, runtime.max_in_flight

    @remote_function(dispatch="all", collect="first", lazy_collect=False)
    def calls(self, other: Inner) -> str:
        return type(other.defaults()).__name__


@pytest.mark.usefixtures("ray_cluster")
def test_defaults_of_the_session_reach_its_workers_also_after_a_restart() -> None:
    groups = [DeviceGroup("a", 2, "CPU"), DeviceGroup("b", 1, "CPU")]
    with twinkle.session("ray", groups=groups, lazy_collect=False, max_in_flight=7, restart="group"):
        inner, other = twinkle.on("a").create(Inner), twinkle.on("b").create(Inner)
        assert (inner.defaults(), other.defaults()) == ((False, 7), (False, 7))
        assert inner.calls(other) == "tuple"
        restart("a")
        assert (inner.defaults(), other.defaults()) == ((False, 7), (False, 7))
        assert inner.calls(other) == other.calls(inner) == "tuple"
