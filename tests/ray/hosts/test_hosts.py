"""The hosts themselves: what is their own, what a link carries, and that they end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hosts import Hosts, why_not

if TYPE_CHECKING:
    from collections.abc import Callable

LISTEN = """
import socket
server = socket.create_server(("", 7000))
print("ready", flush=True)
connection, size = server.accept()[0], 0
while part := connection.recv(1 << 20):
    size += len(part)
print(size)
"""
SEND = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 7000), 10)
began = time.monotonic()
connection.sendall(bytes(int(sys.argv[2])))
connection.shutdown(socket.SHUT_WR)
connection.recv(1)
print(time.monotonic() - began)
"""
TRY = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 7001), 1)
except OSError as error:
    print(type(error).__name__)
"""
KILLED = """
import subprocess, time
from hosts import Hosts
hosts = Hosts()
subprocess.Popen(hosts.inside("one", "sleep", "600"))
print(hosts.folder, *hosts.processes(), flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def hosts(make_hosts: Callable[[], Hosts]) -> Hosts:
    return make_hosts()


def test_each_host_has_what_is_its_own(hosts: Hosts) -> None:
    outside = (
        os.readlink("/proc/self/ns/net"),
        Path("/proc/sys/kernel/random/boot_id").read_text(),
        socket.gethostname(),
    )
    seen = [outside]
    for name, address in hosts.addresses.items():
        hosts.run(name, "touch", f"/dev/shm/{name}", f"{hosts.folder}/{name}")
        assert hosts.run(name, "ls", "/dev/shm").split() == [name]
        assert sorted(hosts.run(name, "ls", str(hosts.folder)).split()) == ["boot_id", name]
        assert hosts.run(name, "hostname").strip() == name
        assert address in hosts.run(name, "ip", "-4", "-o", "address", "show", "eth0")
        assert hosts.run(name, "ip", "route", "show", "default") == ""
        assert hosts.run(name, "getent", "hosts", "two").split() == [hosts.addresses["two"], "two"]
        assert len(hosts.run(name, "ps", "-e", "-o", "pid=").split()) == 2  # its first process, and ps
        net, boot = "readlink /proc/self/ns/net", "cat /proc/sys/kernel/random/boot_id"
        seen.append((hosts.run(name, *net.split()).strip(), hosts.run(name, *boot.split()), name))
    for own in zip(*seen, strict=True):
        assert len(set(own)) == 4
    assert not Path("/dev/shm/one").exists()


def test_a_link_carries_its_rate_until_it_is_cut(hosts: Hosts) -> None:
    hosts.set_rate("two", "80mbit")
    size = 5_000_000
    listening = subprocess.Popen(hosts.inside("two", sys.executable, "-c", LISTEN), stdout=subprocess.PIPE, text=True)
    with listening:
        assert listening.stdout is not None and listening.stdout.readline() == "ready\n"
        seconds = float(hosts.run("one", sys.executable, "-c", SEND, hosts.addresses["two"], str(size)))
        assert listening.stdout.read().strip() == str(size)
    assert 0.4 < seconds < 5  # 0.5 s at the rate
    to_two = [sys.executable, "-c", TRY, hosts.addresses["two"]]
    assert hosts.run("one", *to_two).strip() == "ConnectionRefusedError"
    hosts.cut("two")
    assert hosts.run("one", *to_two).strip() == "TimeoutError"
    hosts.mend("two")
    until = time.monotonic() + 10
    while hosts.run("one", *to_two).strip() != "ConnectionRefusedError":
        assert time.monotonic() < until


def test_hosts_end_when_their_program_is_killed(hosts_here: None) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent / "tools"
    )
    with program:
        assert program.stdout is not None
        folder, *pids = program.stdout.readline().split()
        assert len(pids) >= 4 and Path(folder).exists()
        program.send_signal(signal.SIGKILL)
    until = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids) or Path(folder).exists():
        assert time.monotonic() < until


def test_a_machine_without_the_tools_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    reason = why_not()
    assert reason is not None and reason.startswith(("hosts need root", "hosts need the commands ip, tc, "))
