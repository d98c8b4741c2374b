"""Processes that are forked from one with a session: the session stays the parent's, whatever becomes of the child."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

HEAD = """
import atexit, multiprocessing, os, sys, time
import twinkle_remote as twinkle
from twinkle_mesh import DeviceGroup

@twinkle.remote_class()
class Actor:
    def __init__(self):
        self.calls = 0

    @twinkle.remote_function(dispatch="all", collect="first")
    def count(self):
        self.calls += 1
        return self.calls

    @twinkle.remote_function(dispatch="all", collect="first")
    def slow(self):
        time.sleep(0.5)
        print("slow is done", flush=True)

    @twinkle.remote_function(dispatch="all", collect="first")
    def fail(self):
        raise KeyError("unseen")

def tell(call):
    try:
        print("told", twinkle.get(call()), flush=True)
    except Exception as error:
        print(type(error).__name__, error, flush=True)

def wait_for(pid):
    print("status", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)

twinkle.initialize(sys.argv[1], groups=[DeviceGroup("actor", 2, "CPU")])
actor = twinkle.on("actor").create(Actor)
assert twinkle.get(actor.count()) == 1
"""
REFUSAL = 'hand over their values, or start this process by multiprocessing.get_context("spawn")'


def run(path: Path, mode: str, source: str) -> tuple[int, str]:
    """The exit status and the output of a program."""
    file = path / "program.py"
    file.write_text(HEAD + textwrap.dedent(source))
    done = subprocess.run([sys.executable, str(file), mode], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_forked_child_has_no_part_in_the_session_and_may_have_its_own(tmp_path: Path) -> None:
    status, out = run(
        tmp_path,
        "threads",
        """
        slow, failed = actor.slow(), actor.fail()
        while not failed.done():
            time.sleep(0.001)
        pid = os.fork()
        if pid == 0:
            atexit.register(print, "the child's own exit function")
            tell(actor.count)
            tell(slow.result)
            tell(lambda: twinkle.on("actor"))
            tell(lambda: Actor(remote_group="actor"))
            twinkle.initialize("threads", groups=[DeviceGroup("own", 2, "CPU")])
            tell(twinkle.on("own").create(Actor).count)
            sys.stdout.flush()
            sys.exit(3)
        wait_for(pid)
        child = multiprocessing.get_context("fork").Process(target=tell, args=(actor.count,))
        child.start()
        child.join(30)
        print("status", child.exitcode, flush=True)
        twinkle.get(slow)
        """,
    )
    assert out.count("NotInitializedError") == out.count(REFUSAL) == 5, out
    assert "the result of Actor.slow, called from" in out and "Actor(remote_group='actor'): process" in out
    assert "told 1" in out and "the child's own exit function" in out and "status 3" in out and "status 0" in out
    assert out.count("slow is done") == 2, "the parent's workers went on"
    assert status == 1 and out.count("KeyError: Actor.fail failed on actor[") == 1, "a failure of the parent alone"


def test_in_one_process_the_child_has_copies_of_its_own(tmp_path: Path) -> None:
    status, out = run(
        tmp_path,
        "local",
        """
        pid = os.fork()
        if pid == 0:
            tell(actor.count)
            tell(actor.count)
            sys.exit(0)
        wait_for(pid)
        tell(actor.count)
        """,
    )
    assert status == 0 and out.split("\n")[:4] == ["told 2", "told 3", "status 0", "told 2"], out
