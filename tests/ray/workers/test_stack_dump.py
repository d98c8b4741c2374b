"""Where a process is, or why that is not known."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from twinkle_ray.workers.stack_dump import is_alive, read_stack

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = """
import signal, sys
from twinkle_ray.workers.stack_dump import offer_stack
print(offer_stack(), flush=True)
if sys.stdin.readline() == "block\\n":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMAX - 2])
    print("blocked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", SOURCE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        yield started
        started.kill()


def descriptor_of(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def test_a_process_that_runs_no_task_says_so(process: subprocess.Popen[str]) -> None:
    descriptor = descriptor_of(process)
    assert read_stack(process.pid, descriptor, timeout=20).startswith("it runs nothing: it waits for")
    assert is_alive(process.pid, descriptor)


def test_a_process_that_is_stopped_gone_or_another_is_told_as_such(process: subprocess.Popen[str]) -> None:
    descriptor = descriptor_of(process)
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    assert read_stack(process.pid, descriptor).startswith(f"process {process.pid} is stopped (SIGSTOP)")
    assert is_alive(process.pid, descriptor)
    process.kill()
    process.wait(30)
    assert read_stack(process.pid, descriptor) == f"process {process.pid} is gone"
    assert not is_alive(process.pid, descriptor)
    with open(os.devnull) as other:
        assert "offers no stack" in read_stack(os.getpid(), other.fileno())


def test_a_process_that_keeps_the_signal_waiting_is_told_with_its_state(process: subprocess.Popen[str]) -> None:
    descriptor = descriptor_of(process)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("block\n")
    process.stdin.flush()
    assert process.stdout.readline() == "blocked\n"
    assert "wrote no stack within 0.2 s; its state in the kernel is " in read_stack(
        process.pid, descriptor, timeout=0.2
    )
