"""The doctor's findings on this host: its name, ports, memory, disk, clock and limits."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import twinkle
from twinkle.cli.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

_MIN_OPEN_FILES = 4096
_MIN_PORTS = 4096
_MIN_FREE_GIB = 1.0
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_MEMORY_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_CONNECT_SECONDS = 2.0


def host_findings() -> Iterator[Finding]:
    """Findings about the host name, ports, memory, disk, clock and limits of this process."""
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError as error:
        yield Finding("host name", f"{name} does not resolve: {error}", "add it to /etc/hosts: workers meet by name")
    else:
        yield Finding("host name", f"{name} is {address}")
        yield _ports(address)
    yield _memory()
    yield _disk()
    yield _clock()
    if sys.platform != "win32":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        low = 0 <= soft < _MIN_OPEN_FILES
        remedy = f"ulimit -n {min(hard, 65536) if hard > 0 else 65536}: each worker holds many sockets" if low else ""
        yield Finding("open files", f"limit {soft}", remedy)


def memory_bytes() -> int:
    """Bytes of memory that this process and its children may use: the host's, or its container's."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in _MEMORY_LIMITS:
        if path.exists() and (limit := path.read_text().strip()).isdigit():
            total = min(total, int(limit))
    return total


def _ports(address: str) -> Finding:
    """Whether a socket on this host's own address can be bound and reached, and how many ports there are."""
    said = ""
    few = False
    if _PORT_RANGE.exists():
        low, high = map(int, _PORT_RANGE.read_text().split())
        said = f"; {low} to {high} are for sockets of programs"
        few = high - low < _MIN_PORTS
    try:
        with socket.create_server((address, 0)) as server:
            socket.create_connection(server.getsockname()[:2], timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        return Finding("ports", f"{address} cannot be reached from here: {error}", "let the firewall pass its own host")
    remedy = "widen net.ipv4.ip_local_port_range: each worker holds several" if few else ""
    return Finding("ports", f"{address} can be bound and reached{said}", remedy)


def _memory() -> Finding:
    total = memory_bytes() / 2**30
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        rows = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        available = int(rows["MemAvailable"].split()[0]) / 2**20
    available = min(available, total)
    remedy = "end what holds it: each worker is a process of its own" if available < _MIN_FREE_GIB else ""
    return Finding("memory", f"{available:.1f} of {total:.1f} GiB available", remedy)


def _disk() -> Finding:
    folder = tempfile.gettempdir()
    disk = shutil.disk_usage(folder)
    free, used = disk.free / 2**30, 1 - disk.free / disk.total
    remedy = ""
    if free < _MIN_FREE_GIB or used > 0.95:
        remedy = "free some, or set TMPDIR: Ray stores nothing more once a disk is 95 % full"
    return Finding("temporary files", f"{free:.1f} GiB free in {folder}, {used:.0%} used", remedy)


def _clock() -> Finding:
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    if time.time() < Path(twinkle.__file__).stat().st_mtime:
        return Finding(
            "clock", f"{now}, before this package was installed", "set it: timelines and certificates need it"
        )
    if shutil.which("timedatectl") is None:
        return Finding("clock", f"{now}; nothing here shows whether it is synchronised")
    asked = ["timedatectl", "show", "--property=NTPSynchronized", "--value"]
    try:
        said = subprocess.run(
            asked, capture_output=True, text=True, timeout=_CONNECT_SECONDS, check=False
        ).stdout.strip()
    except subprocess.TimeoutExpired:
        said = ""
    if said == "no":
        return Finding(
            "clock", f"{now}, not synchronised", "timedatectl set-ntp true: timelines of nodes compare clocks"
        )
    return Finding("clock", f"{now}, synchronised" if said == "yes" else now)
