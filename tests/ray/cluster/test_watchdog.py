"""Processes that carry a mark end with the one that watches over them, and no others do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from twinkle_ray.cluster.watchdog import MARK, Watchdog, marked

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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
    watchdog = Watchdog(mine)
    marked_one, stranger = started(mine), started(other)
    try:
        assert marked(mine) == [marked_one.pid]
        watchdog.close()
        watchdog.close()
        assert marked_one.wait(5) == -signal.SIGKILL
        assert stranger.poll() is None
    finally:
        for process in (marked_one, stranger):
            process.kill()
            process.communicate(timeout=5)


@pytest.mark.parametrize("forks", ["alone", "forked"])
def test_a_killed_watcher_ends_what_is_marked(program: Callable[..., Any], tmp_path: Path, forks: str) -> None:
    mark = uuid.uuid4().hex
    folder = tmp_path / "folder"
    (folder / "r").mkdir(parents=True)
    watcher = program(
        """
        import os, signal, sys
        from pathlib import Path
        from twinkle_ray.cluster.watchdog import Watchdog
        watchdog = Watchdog(sys.argv[1], Path(sys.argv[2]))
        if sys.argv[3] == "alone" or os.fork():
            print("READY", flush=True)
        signal.pause()
        """,
        mark,
        str(folder),
        forks,
    )
    watcher.line("READY", 30)
    marked_one = started(mark)
    watcher.process.kill()
    try:
        assert marked_one.wait(15) == -signal.SIGKILL
        until = time.monotonic() + 15
        while folder.exists():
            assert time.monotonic() < until
    finally:
        marked_one.kill()
        marked_one.communicate(timeout=5)


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_the_guard_has_nothing_of_the_watcher_and_its_work_is_done(program: Callable[..., Any], how: str) -> None:
    program(
        """
        import os, socket, subprocess, sys
        from contextlib import suppress
        from pathlib import Path
        from twinkle_ray.cluster.watchdog import Watchdog
        os.environ["HF_TOKEN"] = "canary"
        open_one = socket.socket()
        open_one.set_inheritable(True)
        Path("folder").mkdir()
        watchdog = Watchdog("none", Path("folder").resolve())
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        (pid,) = children
        told = Path(f"/proc/{pid}")
        while b"watchdog" not in (told / "cmdline").read_bytes():
            pass
        names = {entry.partition(b"=")[0] for entry in (told / "environ").read_bytes().split(b"\\0") if entry}
        assert names <= {b"LD_LIBRARY_PATH"}, names
        links = []
        for link in (told / "fd").iterdir():
            with suppress(FileNotFoundError):  # its interpreter reads its own files, and closes them
                links.append(os.readlink(link))
        assert not [link for link in links if link.startswith("socket:")], links
        if sys.argv[1] == "killed":
            os.kill(int(pid), 9)
        watchdog.close()
        assert not told.exists() and not Path("folder").exists()
        """,
        how,
    ).finish(30)
