"""A small process that outlives its driver by seconds, and ends what is left of the cluster that the driver started.

Ray's agents notice by themselves that their node is gone, but may take half a minute to. Processes of one cluster carry
a variable by which they are found. Run as a script, this file imports little, so that it starts in milliseconds.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

MARK = "RAY_TWINKLE_CLUSTER"
_GRACE = 2.0  # seconds that Ray's processes are given to end by themselves
_POLL = 0.05
_ROUNDS = 3  # a process may start another one while it is killed


class Guard:
    """Watches over the processes of a cluster until this process closes it, or ends.

    Args:
        mark: Value of the variable that the cluster's processes carry.
    """

    def __init__(self, mark: str) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if Path("/proc/self/environ").exists():
            command = [sys.executable, "-I", "-S", __file__, mark]
            environment = {key: value for key, value in os.environ.items() if key != MARK}
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # a terminal's Ctrl-C is for the driver
                cwd="/",
            )

    def close(self) -> None:
        """Have what is left ended, and wait until it is."""
        process, self._process = self._process, None
        if process is None or process.stdin is None:
            return
        process.stdin.close()
        process.wait(10 * _GRACE)


def marked(mark: str) -> list[int]:
    """Processes of this user that carry a mark."""
    found = []
    wanted = f"{MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            carries = wanted in (entry / "environ").read_bytes().split(b"\0")
            if carries and (entry / "stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z":
                found.append(int(entry.name))
        except (OSError, IndexError):  # it ended meanwhile, or is another user's
            continue
    return found


def end_marked(mark: str) -> None:
    """Wait a little for marked processes to end, then kill them."""
    until = time.monotonic() + _GRACE
    while marked(mark) and time.monotonic() < until:
        time.sleep(_POLL)
    for _ in range(_ROUNDS):
        for pid in marked(mark):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:  # it ended meanwhile
                continue
        if not marked(mark):
            return
        time.sleep(_POLL)


if __name__ == "__main__":
    sys.stdin.buffer.read()  # the driver writes nothing: this returns when it closes its end, or is gone
    end_marked(sys.argv[1])
