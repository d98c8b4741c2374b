"""Processes that carry a mark end with the one that watches over them, and no others do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING, Any

from twinkle_ray.cluster.watchdog import MARK, Guard, marked

if TYPE_CHECKING:
    from collections.abc import Callable

STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"


def started(mark: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", STUBBORN], env={**os.environ, MARK: mark}, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    return process


def test_closing_ends_what_is_marked_and_nothing_else() -> None:
    mine, other = uuid.uuid4().hex, uuid.uuid4().hex
    guard = Guard(mine)
    marked_one, stranger = started(mine), started(other)
    try:
        assert marked(mine) == [marked_one.pid]
        guard.close()
        guard.close()
        assert marked_one.wait(5) == -signal.SIGKILL
        assert stranger.poll() is None
    finally:
        for process in (marked_one, stranger):
            process.kill()
            process.communicate(timeout=5)


def test_a_killed_watcher_ends_what_is_marked(program: Callable[..., Any]) -> None:
    mark = uuid.uuid4().hex
    watcher = program(
        """
        import signal, sys
        from twinkle_ray.cluster.watchdog import Guard
        guard = Guard(sys.argv[1])
        print("READY", flush=True)
        signal.pause()
        """,
        mark,
    )
    watcher.line("READY", 30)
    marked_one = started(mark)
    watcher.process.kill()
    try:
        assert marked_one.wait(15) == -signal.SIGKILL
    finally:
        marked_one.kill()
        marked_one.communicate(timeout=5)
