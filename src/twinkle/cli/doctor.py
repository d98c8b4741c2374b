"""`twinkle doctor`: reports versions, devices and limits of this machine, and what to fix."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

_DISTRIBUTIONS = (
    "twinkle-all",
    "twinkle-mesh",
    "twinkle-remote",
    "twinkle-data",
    "twinkle-ray",
    "ray",
    "torch",
    "numpy",
)
_MIN_SHARED_GIB = 1.0
_MIN_OPEN_FILES = 4096


class Finding(NamedTuple):
    """One line of the report.

    Attributes:
        what: What was checked.
        found: What was found.
        remedy: What to do; empty when all is well.
    """

    what: str
    found: str
    remedy: str = ""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `doctor` command."""
    parser = subparsers.add_parser("doctor", help="show versions, devices and limits, and what would help")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the report; 1 when something needs a remedy."""
    findings = [*_versions(), *_backends(), *_devices(), *_host()]
    width = max(len(finding.what) for finding in findings)
    for finding in findings:
        print(f"{'!' if finding.remedy else ' '} {finding.what:<{width}}  {finding.found}")
        if finding.remedy:
            print(f"  {'':<{width}}  -> {finding.remedy}")
    return 1 if any(finding.remedy for finding in findings) else 0


def _versions() -> Iterator[Finding]:
    yield Finding("python", f"{platform.python_version()} ({sys.executable})")
    for name in _DISTRIBUTIONS:
        try:
            yield Finding(name, version(name))
        except PackageNotFoundError:
            yield Finding(name, "not installed", f"pip install {name}")


def _backends() -> Iterator[Finding]:
    for entry in sorted(entry_points(group="twinkle.backends"), key=lambda entry: entry.name):
        try:
            entry.load()
        except Exception as error:  # an import can raise anything, and the user must see it
            yield Finding(f"backend {entry.name}", f"does not load: {type(error).__name__}: {error}", "reinstall it")
        else:
            yield Finding(f"backend {entry.name}", entry.value)


def _devices() -> Iterator[Finding]:
    yield Finding("CPUs", f"{len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()}")
    try:
        import torch
    except ImportError:
        return
    count = torch.cuda.device_count()
    names = sorted({torch.cuda.get_device_name(i) for i in range(count)})
    yield Finding("GPUs", f"{count} {', '.join(names)}".strip() if count else "none: groups of CPUs and Gloo work")
    nccl = torch.distributed.is_available() and torch.distributed.is_nccl_available()
    yield Finding(
        "collectives", f"gloo{' and nccl' if nccl else ''}", "install a torch with NCCL" if count and not nccl else ""
    )


def _host() -> Iterator[Finding]:
    name = socket.gethostname()
    try:
        yield Finding("host name", f"{name} is {socket.gethostbyname(name)}")
    except OSError as error:
        yield Finding("host name", f"{name} does not resolve: {error}", "add it to /etc/hosts: workers meet by name")
    if os.path.isdir("/dev/shm"):
        free = shutil.disk_usage("/dev/shm").free / 2**30
        remedy = f"give it {_MIN_SHARED_GIB:g} GiB or more: Ray keeps objects there" if free < _MIN_SHARED_GIB else ""
        yield Finding("shared memory", f"{free:.1f} GiB free in /dev/shm", remedy)
    if sys.platform != "win32":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        low = 0 <= soft < _MIN_OPEN_FILES
        remedy = f"ulimit -n {min(hard, 65536) if hard > 0 else 65536}: each worker holds many sockets" if low else ""
        yield Finding("open files", f"limit {soft}", remedy)
