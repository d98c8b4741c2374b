"""One cluster for the ordinary tests, and programs with clusters of their own for those that break things."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MARK = "RAY_TWINKLE_TEST"  # every process of a program's cluster inherits RAY_*, so that what is left over is found
GROUPS = {"four": 4, "two": 2}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ray opens sockets, pipes and log files that it leaves to the garbage collector."""
    for item in items:
        if item.get_closest_marker("ray"):
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """This process connected to one embedded cluster, which sessions without an address join and leave running."""
    from twinkle_ray.cluster import Cluster

    cluster = Cluster(None, num_cpus=16)
    yield
    cluster.close()


@pytest.fixture(scope="module")
def ray_session(ray_cluster: None) -> Iterator[None]:
    """A session with groups "four" and "two" of CPU workers, whose results are collected at once."""
    import twinkle_remote
    from twinkle_mesh import DeviceGroup

    groups = [DeviceGroup(name, size, "CPU") for name, size in GROUPS.items()]
    with twinkle_remote.session("ray", groups=groups, lazy_collect=False):
        yield


@dataclass
class Program:
    """A program in a process of its own.

    Attributes:
        process: The process.
        mark: Value of the variable that it and its cluster's processes carry.
    """

    process: subprocess.Popen[str]
    mark: str

    def finish(self, timeout: float) -> str:
        """What it printed, after it has ended by itself with 0."""
        out, _ = self.process.communicate(timeout=timeout)
        assert self.process.returncode == 0, out
        return out

    def line(self, start: str) -> str:
        """The rest of its next line that starts so; pytest's timeout is the limit."""
        assert self.process.stdout is not None
        seen = []
        for line in self.process.stdout:
            seen.append(line)
            if line.startswith(start):
                return line.removeprefix(start).strip()
        raise AssertionError(f"ended without a line {start!r}:\n{''.join(seen)}")

    def left_over(self, timeout: float) -> list[str]:
        """Its processes, itself left out, that are still there after so many seconds."""
        until = time.monotonic() + timeout
        while (left := self._processes()) and time.monotonic() < until:
            time.sleep(0.1)
        return list(left.values())

    def end(self) -> None:
        """Kill what is left."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        for pid in self._processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if self.process.stdout is not None:
            self.process.stdout.close()

    def _processes(self) -> dict[int, str]:
        mark = f"{MARK}={self.mark}".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) in (self.process.pid, os.getpid()):
                continue
            try:
                if mark in (entry / "environ").read_bytes() and b") Z" not in (entry / "stat").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
            except OSError:  # it ended meanwhile, or is another user's
                continue
        return found


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Start a program of the given source; its working directory is its own, and nothing of it outlives the test."""
    started: list[Program] = []

    def start(source: str, *arguments: str, **environment: str) -> Program:
        path = tmp_path / f"program{len(started)}.py"
        path.write_text(textwrap.dedent(source))
        mark = uuid.uuid4().hex
        process = subprocess.Popen(
            [sys.executable, "-u", str(path), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=tmp_path,
            env={**os.environ, MARK: mark, **environment},
            start_new_session=True,
        )
        started.append(Program(process, mark))
        return started[-1]

    yield start
    for one in started:
        one.end()
