"""Lines of a session's start are for a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

PROGRAM = "from twinkle_remote.backends.support import report_start; report_start('placing actor')"


def test_a_terminal_is_told() -> None:
    ours, theirs = pty.openpty()
    try:
        subprocess.run([sys.executable, "-c", PROGRAM], stderr=theirs, timeout=60, check=True)
        assert os.read(ours, 1000) == b"twinkle: placing actor\r\n"
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_file_or_a_pipe_is_not() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")
