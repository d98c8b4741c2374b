"""A server belongs to the process that started it: forked ones end by SIGTERM, and leave it alone."""

from __future__ import annotations

import os
import random
import signal
import time
import urllib.request

import pytest

from twinkle_remote import serve
from twinkle_remote.conformance.subjects.components import Counter

SECONDS = 20.0


def exit_code(pid: int) -> int:
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return pytest.fail(f"a forked process did not end within {SECONDS} s of SIGTERM")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # the forks of this test run no thread's code
def test_a_fork_ends_by_sigterm_at_any_moment_and_leaves_the_server_to_its_parent(threads: None) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with serve([Counter], port=0, token="a token for tests") as server:
        delays = [0.0, *(random.Random(1).expovariate(500.0) for _ in range(25))]
        for delay in delays:
            pid = os.fork()
            if pid == 0:
                try:
                    server.close()
                    time.sleep(SECONDS)
                finally:  # in place of the end of pytest
                    os._exit(3)
            time.sleep(delay)
            os.kill(pid, signal.SIGTERM)
            assert exit_code(pid) == -signal.SIGTERM
        with urllib.request.urlopen(f"{server.address}/health", timeout=SECONDS) as answer:
            assert answer.status == 204
    assert signal.getsignal(signal.SIGTERM) == before
