"""The end of a program that leaves its session on Ray open: what is in flight is done, and a failure is its status."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.ray

PROGRAM = """
    import os, time
    from pathlib import Path
    import twinkle_remote as twinkle
    from twinkle_mesh import DeviceGroup

    FOLDER = Path.cwd()

    @twinkle.remote_class()
    class Actor:
        @twinkle.remote_function(dispatch="all")
        def step(self, index):
            time.sleep(0.3)
            if index == 1 and twinkle.current_worker().rank == 1:
                raise KeyError("unseen")

        @twinkle.remote_function(dispatch="all")
        def save(self):
            (FOLDER / f"saved-{os.environ['RANK']}").touch()

        @twinkle.remote_function(dispatch="all")
        def stall(self):
            time.sleep(600)

        @twinkle.remote_function(dispatch="all")
        def pid(self):
            return os.getpid()

        @twinkle.remote_function(dispatch="all")
        def asks(self, other):
            other.stall()  # this task ends with that call

    if __name__ == "__main__":
        sizes = {"actor": 2, "caller": 1, "other": 1}
        twinkle.initialize("ray", groups=[DeviceGroup(name, size, "CPU") for name, size in sizes.items()])
        actor, caller, other = [Actor(remote_group=name) for name in sizes]
        pid = twinkle.get(caller.pid())
        caller.asks(other)
        for index in range(4):
            actor.step(index)
        actor.save()
        print("MADE", pid, flush=True)
"""


def test_what_is_in_flight_is_done_and_a_failure_is_the_exit_status(
    joined_program: Callable[..., Any], tmp_path: Path
) -> None:
    running = joined_program(PROGRAM)
    pid = int(running.line("MADE", 90))
    until = time.monotonic() + 60
    while len(list(tmp_path.glob("saved-*"))) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)  # a worker that waits for a call of its own
    assert running.process.wait(300) == 1
    text = running.rest()
    assert "KeyError: Actor.step failed on actor[1/2]" in text, text  # the first is raised, the others are logged
    assert re.search(r"no caller waited for it: .*caller\[0/1\]", text), text
    assert sorted(path.name for path in tmp_path.glob("saved-*")) == ["saved-0", "saved-1"]
    assert running.left_over(30) == []


SESSIONS = """
    import gc, sys
    import ray
    import twinkle_remote as twinkle
    from twinkle_mesh import DeviceGroup

    KEPT = []

    @twinkle.remote_class()
    class Actor:
        @twinkle.remote_function(dispatch="all")
        def step(self):
            return 1

        @twinkle.remote_function(dispatch="all")
        async def later(self, value):
            return value

        @twinkle.remote_function(dispatch="all")
        def torch(self):
            return "torch" in sys.modules

    def ours():
        with twinkle.session("ray", groups=[DeviceGroup("actor", 2, "CPU")]):
            actor = Actor(remote_group="actor")
            KEPT.append([actor, actor.step(), actor.later(actor.step()), twinkle.submit(actor.later, 1)])
            twinkle.get(KEPT[-1][1:])
            print("TORCH", twinkle.get(actor.torch()), flush=True)

    if __name__ == "__main__":
        for _ in range(2):
            ours()
        handles = [one for one in gc.get_objects() if isinstance(one, ray.actor.ActorHandle)]
        print("HANDLES", len(KEPT), len(handles), flush=True)
"""


def test_workers_load_no_torch_and_handles_end_with_their_session_though_results_do_not(
    joined_program: Callable[..., Any],
) -> None:
    running = joined_program(SESSIONS)
    assert [running.line("TORCH", 120) for _ in range(2)] == ["[False, False]"] * 2  # before the user's class does
    # For each handle, Ray keeps a connection to the driver.
    assert running.line("HANDLES", 120) == "2 0"
    running.finish(60)
