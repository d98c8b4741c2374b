"""A server belongs to the process that started it: forked ones end by SIGTERM, and leave it alone."""

from __future__ import annotations

import os
import signal
import time
import urllib.request

import pytest
from tests.conformance.subjects.components import Counter

from twinkle_remote import serve

SECONDS = 20.0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # the fork of this test runs no thread's code
def test_a_fork_ends_by_sigterm_and_leaves_the_server_to_its_parent(threads: None) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with serve([Counter], port=0, token="a token for tests") as server:
        ready, begun = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.write(begun, b"x")
                time.sleep(SECONDS)
            finally:  # in place of the end of pytest
                os._exit(3)
        assert os.read(ready, 1) == b"x"
        os.kill(pid, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
        with urllib.request.urlopen(f"{server.address}/health", timeout=SECONDS) as answer:
            assert answer.status == 204
    assert signal.getsignal(signal.SIGTERM) == before
