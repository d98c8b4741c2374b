"""Programs of tests: on the common cluster, or with clusters of their own where they break those."""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.joined import joined_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

MARK = "RAY_TWINKLE_TEST"  # every process of a program's cluster inherits RAY_*, so that what is left over is found
GROUPS = {"four": 4, "two": 2}
_COLOURS = re.compile(r"\x1b\[\d*m")  # of Ray's labels of lines
SLACK = 3  # limits are for a quiet machine of two cores; this much longer is not a hang


@pytest.fixture(scope="module")
def ray_session(ray_cluster: None) -> Iterator[None]:
    """A session with groups "four" and "two" of CPU workers, whose results are collected at once."""
    import twinkle_remote
    from twinkle_mesh import DeviceGroup

    groups = [DeviceGroup(name, size, "CPU") for name, size in GROUPS.items()]
    with twinkle_remote.session("ray", groups=groups, lazy_collect=False):
        yield


class Program:
    """A program in a process of its own, and every process that it starts.

    Args:
        path: Its source.
        arguments: Its arguments.
        environment: Variables beside this process's.
        inside: The begin of a command that runs it elsewhere.
        cluster: Address and mark of the cluster that it joins; without one it starts its own.
    """

    def __init__(
        self,
        path: Path,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        inside: Sequence[str] = (),
        cluster: tuple[str, str] | None = None,
    ) -> None:
        mark = uuid.uuid4().hex
        self._marks = [mark] if cluster is None else [mark, cluster[1]]
        self._before: set[int] = {os.getpid()}
        self._before.update(self._processes())
        inherited = dict(os.environ) if cluster is None else joined_environment(cluster[0])
        self.process = subprocess.Popen(
            [*inside, sys.executable, str(path), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=path.parent,
            # Its processes share the pipe, and a line that is written in parts may have another's in it.
            env={**inherited, MARK: mark, **environment, "PYTHONUNBUFFERED": ""},
            start_new_session=True,
        )
        self._before.add(self.process.pid)
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._seen: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(_COLOURS.sub("", line))
        self._lines.put(None)

    def say(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def line(self, start: str, timeout: float) -> str:
        """The rest of its next line that starts so."""
        until = time.monotonic() + SLACK * timeout
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no line {start!r} in {SLACK * timeout} s:\n{''.join(self._seen)}") from None
            if line is None:
                raise AssertionError(f"ended without a line {start!r}:\n{''.join(self._seen)}")
            self._seen.append(line)
            if line.startswith(start):
                return line.removeprefix(start).strip()

    def report(self, name: str, timeout: float) -> dict[str, Any]:
        """What it reported under a name by `program_tools.report`."""
        out: dict[str, Any] = json.loads(self.line(name, timeout))
        return out

    def finish(self, timeout: float) -> str:
        """What it printed, after it has ended by itself with 0."""
        code, out = self.process.wait(SLACK * timeout), self.rest()
        assert code == 0, out
        return out

    def rest(self) -> str:
        """What it printed, once it has ended."""
        self._reader.join(10)
        while (line := self._lines.get()) is not None:
            self._seen.append(line)
        return "".join(self._seen)

    def left_over(self, timeout: float) -> list[str]:
        """Its processes, and new ones of a common cluster that are not idle, still there after so many seconds."""
        until = time.monotonic() + timeout
        while (left := self._processes()) and time.monotonic() < until:
            time.sleep(0.1)
        return list(left.values())

    def end(self) -> None:
        """Kill what is left."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        self.left_over(10 if len(self._marks) > 1 else 0)  # the common cluster ends its workers itself
        for pid in self._processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._reader.join(10)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()

    def _processes(self) -> dict[int, str]:
        marks = [f"{MARK}={mark}".encode() for mark in self._marks]
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) in self._before:
                continue
            try:
                environment = (entry / "environ").read_bytes()
                _, _, status = (entry / "stat").read_text().rpartition(") ")
                state = status.split()[0]
                if any(mark in environment for mark in marks) and state != "Z":
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
                    found[int(entry.name)] = line
            except OSError:  # it ended meanwhile, or is another user's
                continue
        return {pid: line for pid, line in found.items() if not line.startswith("ray::IDLE")}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Program]]:
    """Start programs that tests of a module share; see `program`."""
    yield from _programs(tmp_path_factory.mktemp("programs"))


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Start a program of the given source, in the test's directory; nothing of it outlives the test."""
    yield from _programs(tmp_path)


@pytest.fixture(scope="module")
def joined_programs(
    tmp_path_factory: pytest.TempPathFactory, common_cluster: tuple[str, str]
) -> Iterator[Callable[..., Program]]:
    """As `programs`, on the common cluster."""
    yield from _programs(tmp_path_factory.mktemp("programs"), common_cluster)


@pytest.fixture
def joined_program(tmp_path: Path, common_cluster: tuple[str, str]) -> Iterator[Callable[..., Program]]:
    """As `program`, on the common cluster: it must leave the cluster as it was."""
    yield from _programs(tmp_path, common_cluster)


def _programs(directory: Path, cluster: tuple[str, str] | None = None) -> Iterator[Callable[..., Program]]:
    shutil.copy(Path(__file__).parent / "program_tools.py", directory)
    started: list[Program] = []
    one_at_a_time = threading.Lock()

    def start(source: str, *arguments: str, inside: Sequence[str] = (), **environment: str) -> Program:
        with one_at_a_time:
            path = directory / f"program{len(started)}.py"
            path.write_text(textwrap.dedent(source))
            made = Program(path, arguments, environment, inside, cluster)
            started.append(made)
        return made

    yield start
    for one in started:
        one.end()
