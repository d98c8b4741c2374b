"""A scheduler for tests: a batch script on the first of some hosts, whose `srun` starts a command on all of them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hosts import Hosts

# A client of the job's socket, which the file system of all hosts has: it hands over its arguments, environment and
# streams, and ends with the exit status that it receives.
_CLIENT = """#!{python} -IS
import json, os, socket, sys
job = socket.socket(socket.AF_UNIX)
job.connect({path!r})
asked = json.dumps([*{command!r}, *sys.argv[1:]]), json.dumps(dict(os.environ))
socket.send_fds(job, [b"x"], [1, 2])
with job.makefile("rw") as stream:
    stream.write("\\n".join(asked) + "\\n")
    stream.flush()
    sys.exit(int(stream.readline()))
"""
_SECONDS = 20.0


class Job:
    """A job on some hosts, each of which has one task of each step.

    Args:
        hosts: The hosts.
        names: Those of the job; the batch script runs on the first.
        script: The batch script.
        arguments: Its arguments.
        folder: An empty folder, in which the job was submitted; its log is `log` there.
        environment: Variables of the one who submits it, and of the allocation beyond those that any has.
        number: Of the job.

    Attributes:
        number: Its number, as text.
        folder: Where it was submitted.
        requeued: The job's numbers with which `scontrol requeue` was called.
    """

    def __init__(
        self,
        hosts: Hosts,
        names: Sequence[str],
        script: Path,
        arguments: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        number: int,
    ) -> None:
        self.number, self.folder = str(number), folder
        self.requeued: list[str] = []
        self._hosts, self._names, self._log = hosts, list(names), folder / "log"
        path = folder / "s"  # short: the paths of sockets have a limit
        self._server = socket.create_server(str(path), family=socket.AF_UNIX)
        commands = folder / "bin"
        commands.mkdir()
        for command in ("srun", "scontrol"):
            client = commands / command
            client.write_text(_CLIENT.format(python=sys.executable, path=str(path), command=[command]))
            client.chmod(0o755)
        threading.Thread(target=self._serve, daemon=True).start()
        own = {
            "PATH": os.pathsep.join([str(commands), os.path.dirname(sys.executable), os.environ["PATH"]]),
            "SLURM_JOB_ID": self.number,
            "SLURM_JOB_NUM_NODES": str(len(self._names)),
            "SLURM_SUBMIT_DIR": str(folder),
        }
        with self._log.open("wb") as log:
            self._batch = subprocess.Popen(
                hosts.inside(self._names[0], "bash", str(script), *arguments),
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment, **own},
                cwd=folder,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        """What it has printed."""
        return self._log.read_text(errors="replace")

    @property
    def runs(self) -> bool:
        """Whether its batch script has not ended."""
        return self._batch.poll() is None

    def wait(self, seconds: float) -> int:
        """The batch script's exit status."""
        return self._batch.wait(seconds)

    def notice(self) -> None:
        """Send the batch script, and nothing else, the signal that `--signal=B:USR1@600` asks for."""
        self._signal_batch(signal.SIGUSR1)

    def _signal_batch(self, number: signal.Signals) -> None:
        children = f"/proc/{self._batch.pid}/task/{self._batch.pid}/children"
        with open(children, encoding="utf-8") as file:  # that of nsenter, which waits for it
            (shell,) = map(int, file.read().split())
        os.kill(shell, number)

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:  # the job is closed
                return
            threading.Thread(target=self._answer, args=[client], daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        # A client that ends with its job waits for no answer.
        with suppress(BrokenPipeError), client, client.makefile("rw") as stream:
            _, streams, _, _ = socket.recv_fds(client, 1, 2)
            (command, *arguments), environment = json.loads(stream.readline()), json.loads(stream.readline())
            try:
                code = self._step(arguments, environment, streams) if command == "srun" else self._control(arguments)
            finally:
                for one in streams:
                    os.close(one)
            stream.write(f"{code}\n")

    def _step(self, arguments: list[str], environment: dict[str, str], streams: list[int]) -> int:
        """Start the command as a task on each host; the highest exit status of all, as srun's."""
        first = next(place for place, argument in enumerate(arguments) if not argument.startswith("-"))
        tasks = [
            subprocess.Popen(
                self._hosts.inside(name, *arguments[first:]), stdout=streams[0], stderr=streams[1], env=environment
            )
            for name in self._names
        ]
        return max(task.wait() for task in tasks)

    def _control(self, arguments: list[str]) -> int:
        verb, number = arguments
        assert verb == "requeue", arguments
        self.requeued.append(number)
        return 0

    def close(self) -> None:
        """End the batch script and what it has started, as SLURM does: the next job finds the hosts empty."""
        self._server.close()
        if self.runs:
            self._signal_batch(signal.SIGKILL)
            self._batch.wait(_SECONDS)
        until = time.monotonic() + _SECONDS
        while left := self._processes():
            assert time.monotonic() < until, left
            for pid in left:
                with suppress(ProcessLookupError):  # it has ended meanwhile
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)

    def _processes(self) -> list[int]:
        """The processes with this job's number in their environment."""
        mark, found = f"SLURM_JOB_ID={self.number}".encode(), []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            # It may have ended meanwhile.
            with suppress(OSError), open(f"/proc/{entry}/environ", "rb") as file:
                if mark in file.read().split(b"\0"):
                    found.append(int(entry))
        return found
