"""`twinkle doctor`: reports versions, devices, limits and Ray's settings of this machine, and what to fix."""

from __future__ import annotations

import os
import platform
import resource
import socket
import sys
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

_OURS = tuple(f"twinkle-{name}" for name in ("all", "mesh", "remote", "data", "ray", "http", "engines"))
_MIN_OPEN_FILES = 4096
_MIN_STORE_GIB = 1.0
_SHARED = Path("/dev/shm")
_CONNECT_SECONDS = 2.0
_LAUNCHED = ("RANK", "WORLD_SIZE")


class Finding(NamedTuple):
    """One line of the report.

    Attributes:
        what: The subject.
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
    environment = dict(os.environ)  # before Ray is loaded, which sets variables of its own
    findings = [*_versions(), *_backends(), *_devices(), *_limits(), *ray_findings(environment)]
    width = max(len(finding.what) for finding in findings)
    for finding in findings:
        print(f"{'!' if finding.remedy else ' '} {finding.what:<{width}}  {finding.found}")
        if finding.remedy:
            print(f"  {'':<{width}}  -> {finding.remedy}")
    count = sum(bool(finding.remedy) for finding in findings)
    print(f"\n{count} to fix, marked by !" if count else "\nnothing stands in the way")
    return 1 if count else 0


def _versions() -> Iterator[Finding]:
    yield Finding("python", f"{platform.python_version()} ({sys.executable})")
    for name in (*_OURS, "ray", "torch", "numpy"):
        try:
            yield Finding(name, version(name))
        except PackageNotFoundError:
            ours = "install it where the others came from: a checkout, a folder of wheels or a git URL"
            yield Finding(name, "not installed", ours if name in _OURS else f"pip install {name}")


def _backends() -> Iterator[Finding]:
    for entry in sorted(entry_points(group="twinkle.backends"), key=lambda entry: entry.name):
        try:
            entry.load()
        except Exception as error:  # an import can raise anything, and the user must see it
            yield Finding(f"backend {entry.name}", f"does not load: {type(error).__name__}: {error}", "reinstall it")
        else:
            yield Finding(f"backend {entry.name}", entry.value)


def _devices() -> Iterator[Finding]:
    yield Finding("CPUs", str(len(os.sched_getaffinity(0))))
    try:
        import torch
    except ImportError:
        return
    count = torch.cuda.device_count()
    names = sorted({torch.cuda.get_device_name(i) for i in range(count)})
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    hides = f" (CUDA_VISIBLE_DEVICES={hidden!r} may hide some)" if hidden is not None else ""
    none = f"none{hides}: groups of CPUs and Gloo work"
    yield Finding("GPUs", f"{count} {', '.join(names)}{hides}" if count else none)
    nccl = torch.distributed.is_available() and torch.distributed.is_nccl_available()
    remedy = "install a torch with NCCL" if count and not nccl else ""
    yield Finding("collectives", f"gloo{' and nccl' if nccl else ''}", remedy)


def _limits() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = 0 <= soft < _MIN_OPEN_FILES
    remedy = f"ulimit -n {min(hard, 65536) if hard > 0 else 65536}: each worker holds many sockets" if low else ""
    yield Finding("open files", f"limit {soft}", remedy)
    if _SHARED.is_dir():
        disk = os.statvfs(_SHARED)
        total, free = disk.f_blocks * disk.f_frsize / 2**30, disk.f_bavail * disk.f_frsize / 2**30
        more = f"give it {_MIN_STORE_GIB:g} GiB or more (docker run --shm-size): Ray keeps objects there"
        yield Finding("/dev/shm", f"{free:.1f} of {total:.1f} GiB free", more if free < _MIN_STORE_GIB else "")


def ray_findings(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Yield findings about Ray's address and about variables that change a session.

    Args:
        environment: The variables of the process.
    """
    yield _address(environment.get("RAY_ADDRESS", ""))
    launched = [f"{name}={environment[name]}" for name in _LAUNCHED if name in environment]
    if launched:
        taken = f"{', '.join(launched)}: this process is taken for one of a launcher's"
        yield Finding("launcher", taken, f"unset {' '.join(_LAUNCHED)}")


def _address(address: str) -> Finding:
    if not address or address == "local":
        return Finding("RAY_ADDRESS", address or "not set: a session starts a cluster of its own")
    if address == "auto":
        return Finding("RAY_ADDRESS", "auto: a session joins the cluster of this host")
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "://" in address:
        return Finding("RAY_ADDRESS", address, "write host:port or auto, on a machine of the cluster, or unset it")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        remedy = "unset RAY_ADDRESS, or start the cluster: ray start --head"
        return Finding("RAY_ADDRESS", f"{address} does not answer: {error}", remedy)
    return Finding("RAY_ADDRESS", f"{address} answers: a session joins it")
