"""Workers of a cluster of a session's own are forks: they end, come back and are lost as others are."""

from __future__ import annotations

import shutil
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import pytest

from twinkle_mesh import DeviceGroup
from twinkle_ray.forkserver.forked import _OF_A_FORK
from twinkle_remote import initialize, on, remote_class, remote_function

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ray.conftest import Program

PROGRAM = """
    import os, signal, sys, time
    import numpy, torch
    from program_tools import raylets, report
    import twinkle_ray
    import twinkle_remote as twinkle
    from twinkle_mesh import DeviceGroup

    @twinkle.remote_class()
    class Worker:
        @twinkle.remote_function(dispatch="all", collect="none")
        def state(self):
            with open(f"/proc/{os.getppid()}/cmdline") as file:
                parent = file.read()
            try:
                with open(f"/proc/{os.getppid()}/maps") as file:
                    maps = file.read()
            except OSError:  # the first process of the system may not be looked at
                maps = ""
            loaded = [name for name in ("numpy", "torch") if f"/{name}/" in maps]
            torch = sys.modules.get("torch")  # a worker that is no fork would take seconds to load it
            return {
                "pid": os.getpid(), "parent": os.getppid(), "forked": "forkserver/server.py" in parent,
                "loaded": loaded, "threads": torch and torch.get_num_threads(), "executable": sys.executable,
                "nice": os.nice(0), "group": os.getpgid(0) == os.getpid(), "colour": os.environ.get("COLOUR"),
            }

        @twinkle.remote_function(dispatch="all", collect="none")
        def wait(self):
            time.sleep(100)

    def states():
        return worker.state()

    executable = sys.executable
    options = {"start_method": word for word in sys.argv[1:]}
    groups = [DeviceGroup("group", 3, "CPU")]
    twinkle.initialize("ray", groups=groups, lazy_collect=False, restart="group", **options)
    worker = Worker(remote_group="group")
    report("started", states)
    assert sys.executable == executable
"""

AGAIN = """
    twinkle.shutdown()
    twinkle.initialize("ray", groups=groups, lazy_collect=False)
    worker = Worker(remote_group="group")
    report("again", states)
"""


@pytest.fixture(scope="module")
def started(programs: Callable[..., Program]) -> Program:
    return programs(
        PROGRAM
        + """
    os.kill(worker.state()[1]["pid"], signal.SIGKILL)
    report("killed", states)
    twinkle_ray.restart("group")
    report("restarted", states)
    os.kill(worker.state()[0]["parent"], signal.SIGKILL)
    time.sleep(2)
    report("orphaned", states)
    os.kill(worker.state()[1]["pid"], signal.SIGKILL)
    report("killed", states)
    twinkle_ray.restart("group")
    report("again", states)
    (raylet,) = raylets()
    os.kill(raylet, signal.SIGKILL)
    report("without raylet", worker.wait)
    print(input(), flush=True)
    """,
        COLOUR="green",
        RAY_worker_niceness="3",
    )


def test_they_are_forks_with_what_the_driver_has_loaded(started: Program) -> None:
    states = started.report("started ", 60)["value"]
    assert all(state["forked"] and state["loaded"] == ["numpy", "torch"] for state in states)
    assert len({state["parent"] for state in states}) == 1 and len({state["pid"] for state in states}) == 3
    assert all(state["threads"] == 1 and state["group"] and state["colour"] == "green" for state in states)
    assert all("/twinkle-" not in state["executable"] for state in states)
    assert all(state["nice"] == 3 for state in states)


def test_a_killed_one_is_told_of_and_comes_back_as_a_fork(started: Program) -> None:
    killed = started.report("killed ", 30)
    assert killed["kind"] == "WorkerDiedError" and "group[1/3]" in killed["text"] and killed["seconds"] < 10
    assert all(state["forked"] for state in started.report("restarted ", 60)["value"])


def test_the_end_of_their_server_is_not_theirs(started: Program) -> None:
    states = started.report("orphaned ", 30)["value"]
    assert len(states) == 3 and not any(state["forked"] for state in states)
    assert started.report("killed ", 30)["kind"] == "WorkerDiedError"
    again = started.report("again ", 60)["value"]
    assert all(state["forked"] for state in again)


def test_they_end_with_their_raylet_and_nothing_is_left(started: Program) -> None:
    assert started.report("without raylet ", 60)["kind"] in ("WorkerDiedError", "BackendError")
    started.say("end")
    started.line("end", 30)
    started.finish(60)
    assert started.left_over(15) == []


def test_spawn_starts_each_by_itself(program: Callable[..., Program]) -> None:
    unset = """
    import os
    os.environ.pop("RAY_worker_niceness", None)
"""
    spawned = program(unset + PROGRAM, "spawn")
    states: list[dict[str, Any]] = spawned.report("started ", 60)["value"]
    assert not any(state["forked"] for state in states) and len(states) == 3
    assert all(state["nice"] == 0 for state in states)  # Ray's default is 15
    spawned.finish(60)


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(ValueError, match="forkserver"):
        initialize("ray", groups=[DeviceGroup("group", 1, "CPU")], start_method="fork")  # type: ignore[call-overload]  # what is tested


def test_a_node_by_command_forks_the_workers_of_who_joins(program: Callable[..., Program]) -> None:
    folder = tempfile.mkdtemp(prefix="twinkle-n-", dir="/tmp")  # its name is short enough for Ray's sockets
    head = program(
        """
        import os, subprocess, sys
        command = [sys.executable, "-m", "twinkle_ray.forkserver", "start", "--head", "--num-cpus=8", "--port=0",
                   "--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={sys.argv[1]}"]
        out = subprocess.run([*command, "--node-ip-address=127.0.0.1"], capture_output=True, text=True)
        assert out.returncode == 0, out.stdout + out.stderr
        print("address", out.stdout.split("--address='")[1].split("'")[0], flush=True)
        input()
        """,
        folder,
        TMPDIR=folder,
        RAY_AUTH_MODE="disabled",
    )
    address = head.line("address ", 90)
    joined = program(PROGRAM + AGAIN, RAY_ADDRESS=address, RAY_AUTH_MODE="disabled")
    for name in ("started ", "again "):
        states = joined.report(name, 60)["value"]
        assert all(state["forked"] and state["loaded"] == ["numpy", "torch"] for state in states)
    joined.finish(60)
    head.end()
    shutil.rmtree(folder)


@remote_class()
class Loaded:
    def __init__(self) -> None:
        self.modules: list[str] = [name for name in ("numpy", "torch") if name in sys.modules]

    @remote_function(dispatch="all")
    def of_a_fork(self) -> tuple[int, list[str]]:
        return len(_OF_A_FORK), self.modules


@pytest.mark.ray
@pytest.mark.usefixtures("ray_pair")
def test_workers_of_the_common_cluster_are_forks() -> None:
    """Otherwise each of hundreds of workers loads its libraries by itself: no other test would tell."""
    assert on("two").create(Loaded).of_a_fork() == [(1, ["numpy", "torch"])] * 2
