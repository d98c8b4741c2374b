"""A small process that outlives its driver by seconds, and ends the remaining processes of the driver's cluster.

Ray's agents notice the end of their node, but may need half a minute. Processes of one cluster carry
a variable by which they are found. Run as a script, this file imports little, so that it starts in milliseconds.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

MARK = "RAY_TWINKLE_CLUSTER"
_GRACE = 2.0  # seconds that Ray's processes are given to end by themselves
_POLL = 0.05
_ROUNDS = 3  # a process may start another one while it is killed
_NEEDED = ("LD_LIBRARY_PATH", "SYSTEMROOT")  # all that an interpreter may need to start


class Watchdog:
    """Watches over the processes of a cluster until this process closes it, or ends.

    Args:
        mark: Value of the variable that the cluster's processes carry.
        folder: A folder that is removed when they have ended.
    """

    def __init__(self, mark: str, folder: Path | None = None) -> None:
        self._mark, self._folder = mark, folder
        self._process: subprocess.Popen[bytes] | None = None
        if Path("/proc/self/environ").exists():
            command = [sys.executable, "-I", "-S", __file__, mark, str(os.getpid()), str(folder or "")]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _NEEDED if name in os.environ},
                start_new_session=True,  # a terminal's Ctrl-C is for the driver
                cwd="/",
            )

    def resume_stopped(self) -> None:
        """Continue processes that are stopped (SIGSTOP), so that they can end."""
        if self._process is not None:
            for pid in marked(self._mark):
                with suppress(ProcessLookupError):  # it ended meanwhile
                    os.kill(pid, signal.SIGCONT)

    def close(self) -> None:
        """End the processes that are left, remove the folder, and wait for both."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
            try:
                if process.wait(10 * _GRACE) != 0:  # the watchdog was killed
                    end_marked(self._mark)
            except subprocess.TimeoutExpired:  # a slow disk: it goes on alone
                return
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def marked(mark: str) -> list[int]:
    """Return the ids of this user's processes that carry a mark."""
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


def wait_for_end(driver: int) -> None:
    """Return when the driver closes its end of standard input, to which it writes nothing, or is gone.

    Args:
        driver: Its process id; a process that it forked may hold the other end open for longer than it lives.
    """
    watched: list[int] = [sys.stdin.fileno()]
    with suppress(AttributeError, OSError):  # an old kernel has no such descriptors, or the driver is gone
        watched.append(os.pidfd_open(driver))
    if os.getppid() == driver:
        select.select(watched, [], [])


if __name__ == "__main__":
    wait_for_end(int(sys.argv[2]))
    end_marked(sys.argv[1])
    if sys.argv[3]:
        shutil.rmtree(sys.argv[3], ignore_errors=True)
