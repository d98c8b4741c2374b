"""The end of a program that leaves its session open: nothing lost, and failures in its exit status."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


def run(source: str, path: Path, *, interrupt: str = "") -> subprocess.CompletedProcess[str]:
    """A program of its own; interrupted when it has written what is given."""
    file = path / "program.py"
    file.write_text(HEAD + textwrap.dedent(source))
    process = subprocess.Popen(
        [sys.executable, "-u", str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=path
    )
    try:
        if interrupt:
            assert process.stderr is not None
            while interrupt not in process.stderr.readline():
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


HEAD = """
import atexit, logging, threading, time
from pathlib import Path
atexit.register(print, "first atexit")
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

    @twinkle.remote_function(dispatch="all", collect="first", timeout=0.05)
    def late(self):
        threading.Event().wait(60)

twinkle.initialize("threads", groups=[DeviceGroup("actor", 4, "CPU")], close_timeout=0.1)
actor = twinkle.on("actor", DeviceMesh.from_sizes(dp_size=2, tp_size=2)).create(Actor)
"""


def test_a_failure_that_no_caller_saw_is_in_the_exit_status(tmp_path: Path) -> None:
    done = run("actor.update([1, 2]); actor.save('checkpoint-'); actor.update([3, 4])", tmp_path)
    assert done.returncode == 1
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == [f"checkpoint-{rank}" for rank in range(4)]
    assert done.stdout == "first atexit\n"
    assert "\nKeyError: Actor.update failed on actor[2/4 dp=1 tp=0] (node " in done.stderr
    assert "no caller had waited for this call when the session ended; 1 more like it is logged" in done.stderr


def test_the_exit_status_of_a_program_is_its_own(tmp_path: Path) -> None:
    assert run("actor.save('a-'); import sys; sys.exit(0)", tmp_path).returncode == 0
    assert run("actor.save('a-'); import sys; sys.exit(3)", tmp_path).returncode == 3
    failed = run("actor.sleep(); raise OSError('mine')", tmp_path)
    assert failed.returncode == 1 and "Actor.sleep) in flight, the results are lost" in failed.stderr


def test_a_call_past_its_deadline_is_in_the_exit_status(tmp_path: Path) -> None:
    done = run("actor.late(); time.sleep(0.1)", tmp_path)
    assert done.returncode == 1 and "CallTimeoutError: Actor.late on actor[4] dp=2 tp=2 is not done" in done.stderr


def test_an_error_at_a_prompt_is_not_the_end_of_the_program(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-i", "-c", HEAD + "1 / 0"],
        input="actor.save('late-')\n",
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        check=True,
    )
    assert len(list(tmp_path.glob("late-*"))) == 4, done.stderr


@pytest.mark.slow
def test_an_interrupt_that_comes_just_before_the_wait_is_seen(tmp_path: Path) -> None:
    # interrupt_main wakes no lock, as a signal does not that comes between the last bytecode and the wait
    source = "import _thread; threading.Timer(1.0, _thread.interrupt_main).start(); actor.sleep().result()"
    began = time.monotonic()
    done = run(source, tmp_path)
    assert done.returncode != 0 and "KeyboardInterrupt" in done.stderr
    assert time.monotonic() - began < 30  # the call takes 60 s


@pytest.mark.slow
@pytest.mark.parametrize(("end", "more"), [("", ""), ("twinkle.shutdown()", ": Actor.sleep on actor")])
def test_an_interrupt_ends_a_session_that_waits_and_says_for_what(tmp_path: Path, end: str, more: str) -> None:
    source = "import twinkle_remote.sessions.pending_calls as p; p._WARN_AFTER_SECONDS = p._SLOW_SECONDS = 0.1;"
    began = time.monotonic()
    text = f"the session ends when 1 call (Actor.sleep) is done; Ctrl-C gives up{more}"
    done = run(f"{source} actor.sleep(); {end}", tmp_path, interrupt=text)
    assert done.returncode in (130, -signal.SIGINT) and "KeyboardInterrupt" in done.stderr
    assert time.monotonic() - began < 30


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
