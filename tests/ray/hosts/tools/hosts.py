"""Hosts on this machine: each has its own network, address, host name, processes, shared memory and boot id.

All of them live in one process namespace. Its first process ends when the program that made them does, however that
ends, and the kernel ends everything else with it: processes, mounts, links. Nothing has a name outside.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

_TOOLS = ("ip", "tc", "unshare", "nsenter", "mount")
_NETWORK = "10.77.0"
# The first process of a namespace takes in the processes whose parents have ended.
_FIRST = "import signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); sys.stdin.read()"
_FIRST_OF_ALL = _FIRST + "; import shutil; shutil.rmtree(sys.argv[1], True)"
_SECONDS = 20.0  # for a command that sets something up
_TRIAL = """
mount -t tmpfs tmpfs /mnt && hostname trial && ip link add name one type veth peer name two &&
ip link add name bridge type bridge && ip link set one master bridge &&
tc qdisc add dev two root tbf rate 1mbit burst 16kb latency 50ms
"""
_BURST = "256kb"


def why_not() -> str | None:
    """Why this machine cannot have such hosts; None if it can."""
    if sys.platform != "linux":
        return "hosts need Linux's namespaces"
    if os.geteuid() != 0:
        return "hosts need root, to make namespaces and links"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"hosts need the commands {', '.join(missing)} (of iproute2 and util-linux)"
    trial = ["unshare", "--net", "--pid", "--mount", "--uts", "--ipc", "--fork", "--mount-proc", "sh", "-c", _TRIAL]
    tried = subprocess.run(trial, capture_output=True, text=True, timeout=_SECONDS, check=False)
    return None if tried.returncode == 0 else f"this machine allows no namespaces with links: {tried.stderr.strip()}"


class Hosts:
    """Hosts on one switch.

    Args:
        names: Their host names; the first has the address 10.77.0.1, and so on. None has a default route.
        rate: What each link carries in each direction, in tc's units.

    Attributes:
        folder: On each host an empty folder of its own, such as Ray's for its session.
    """

    def __init__(self, names: Sequence[str] = ("one", "two", "three"), rate: str = "500mbit") -> None:
        self.addresses = {name: f"{_NETWORK}.{number}" for number, name in enumerate(names, 1)}
        self.folder = Path(tempfile.mkdtemp(prefix="twinkle-h-", dir="/tmp"))
        (self.folder / "hosts").write_text(
            "".join(f"{address} {name}\n" for name, address in {"localhost": "127.0.0.1", **self.addresses}.items())
        )
        self._keepers: list[subprocess.Popen[str]] = []
        self._started: list[subprocess.Popen[bytes]] = []
        self._first: dict[str, int] = {}
        try:
            new = ["unshare", "--net", "--pid", "--fork", "--kill-child"]
            self._switch = self._keep(new, "ip link set lo up", _FIRST_OF_ALL)
            self._on_switch("ip", "link", "add", "name", "switch", "type", "bridge")
            self._on_switch("ip", "link", "set", "switch", "up")
            for name in names:
                self._add(name, rate)
        except BaseException:
            self.close()
            raise

    def _add(self, name: str, rate: str) -> None:
        folder, address = self.folder, self.addresses[name]
        new = ["unshare", "--net", "--pid", "--mount", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc"]
        setup = [
            "mount -t tmpfs tmpfs /dev/shm",
            f"mount --bind {folder}/hosts /etc/hosts",
            f"mount -t tmpfs tmpfs {folder}",
            f"echo {uuid.uuid4()} > {folder}/boot_id",
            f"mount --bind {folder}/boot_id /proc/sys/kernel/random/boot_id",
            f"hostname {name}",
            "ip link set lo up",
        ]
        first = self._keep(["nsenter", "--target", str(self._switch), "--pid", *new], " && ".join(setup))
        self._first[name] = first
        self._on_switch("ip", "link", "add", "name", name, "type", "veth", "peer", "name", "eth0", "netns", str(first))
        self._on_switch("ip", "link", "set", name, "master", "switch", "up")
        self.run(name, "ip", "address", "add", f"{address}/24", "dev", "eth0")
        self.run(name, "ip", "link", "set", "eth0", "up")
        shape = ["root", "tbf", "rate", rate, "burst", _BURST, "latency", "50ms"]  # in each direction
        self.run(name, "tc", "qdisc", "replace", "dev", "eth0", *shape)
        self._on_switch("tc", "qdisc", "replace", "dev", name, *shape)

    def _keep(self, new: Sequence[str], setup: str, source: str = _FIRST) -> int:
        """Start the first process of new namespaces; return its id."""
        script = f"{setup} && readlink /proc/self/ns/pid && exec {sys.executable} -I -S -c '{source}' {self.folder}"
        keeper = subprocess.Popen(
            [*new, "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._keepers.append(keeper)
        assert keeper.stdout is not None
        namespace = keeper.stdout.readline().strip()
        found = [pid for pid in _in_namespace(namespace) if _is_first(pid)] if namespace else []
        if len(found) != 1:
            keeper.kill()
            raise OSError(f"a namespace was not made: {keeper.communicate(timeout=_SECONDS)[1].strip()}")
        return found[0]

    def inside(self, name: str, *command: str) -> list[str]:
        """The command that runs a command on a host."""
        return ["nsenter", "--target", str(self._first[name]), "--net", "--pid", "--mount", "--uts", "--ipc", *command]

    def run(self, name: str, *command: str) -> str:
        """Run a command on a host to its end; return what it printed."""
        return _run(self.inside(name, *command))

    def start(self, name: str, *command: str, output: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start a command on a host; it ends with its host.

        Args:
            name: The host.
            command: The command.
            output: A file for what it prints.
            environment: Its variables.
        """
        with output.open("wb") as file:
            started = subprocess.Popen(
                self.inside(name, *command), stdout=file, stderr=subprocess.STDOUT, env=environment
            )
        self._started.append(started)
        return started

    def cut(self, name: str) -> None:
        """Take a host's link down: what is sent is lost, and nothing is reset."""
        self._on_switch("ip", "link", "set", name, "down")

    def close(self) -> None:
        """End all hosts."""
        for keeper in self._keepers:
            assert keeper.stdin is not None
            keeper.stdin.close()
        for keeper in self._keepers:
            try:
                keeper.wait(_SECONDS)
            finally:
                for stream in (keeper.stdout, keeper.stderr):
                    assert stream is not None
                    stream.close()
        for started in self._started:
            started.wait(_SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _on_switch(self, *command: str) -> None:
        _run(["nsenter", "--target", str(self._switch), "--net", *command])


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:  # it ended meanwhile
        return ""


def _in_namespace(namespace: str) -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and _namespace(int(name)) == namespace]


def _is_first(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # it ended meanwhile
        return False
    line = next(line for line in status.splitlines() if line.startswith("NSpid:"))
    return line.split()[-1] == "1"
