"""The doctor's findings in Ray's settings: the address, the object store, and variables that change a session."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from twinkle.cli.finding import Finding
from twinkle.cli.host_findings import memory_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SHARED = Path("/dev/shm")
_SHARE = 0.3  # of the memory, which Ray takes for its object store
_OF_SHARED = 0.95  # of /dev/shm, at most
_MIN_STORE_GIB = 1.0
_CONNECT_SECONDS = 2.0
_LAUNCHED = ("RANK", "WORLD_SIZE")
_NICENESS = "RAY_worker_niceness"
_RAYS_NICENESS = 15


def ray_findings(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about Ray's settings.

    Args:
        environment: The variables of the process.
    """
    yield _address(environment.get("RAY_ADDRESS", ""))
    if _SHARED.is_dir():
        yield _object_store()
    yield _niceness(environment)
    held = sorted(name for name in environment if name.startswith("RAY_") and name != "RAY_ADDRESS")
    if held:
        yield Finding("Ray's variables", ", ".join(held))
    launched = [f"{name}={environment[name]}" for name in _LAUNCHED if name in environment]
    if launched:
        yield Finding(
            "launcher",
            f"{', '.join(launched)}: this process is taken for one of a launcher's",
            f"unset {' '.join(_LAUNCHED)}",
        )


def _address(address: str) -> Finding:
    if not address or address == "local":
        return Finding("RAY_ADDRESS", address or "not set: a session starts a cluster of its own")
    if address == "auto":
        return Finding("RAY_ADDRESS", "auto: a session joins the cluster of this host")
    if address.startswith("ray://"):
        return Finding(
            "RAY_ADDRESS",
            address,
            "run on a machine of the cluster, with host:port or auto: Ray's remote client cannot place workers",
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return Finding("RAY_ADDRESS", address, "write host:port or auto, or unset it")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        return Finding(
            "RAY_ADDRESS",
            f"{address} does not answer: {error}",
            "unset RAY_ADDRESS, or start the cluster: ray start --head",
        )
    return Finding("RAY_ADDRESS", f"{address} answers: a session joins it")


def _niceness(environment: Mapping[str, str]) -> Finding:
    """The priority of workers: a cluster that is joined has that of its own start."""
    value = environment.get(_NICENESS)
    joins = environment.get("RAY_ADDRESS", "local") not in ("", "local")
    if joins:
        found = f"as the cluster was started; Ray's default is {_RAYS_NICENESS}, behind every other process of a host"
        return Finding(_NICENESS, found + f": {_NICENESS}=0 before `ray start` gives workers their share")
    if value is None:
        return Finding(
            _NICENESS, f"not set: 0 for workers of a session's own cluster (Ray's default is {_RAYS_NICENESS})"
        )
    try:
        behind = int(value) > 0
    except ValueError:
        return Finding(_NICENESS, f"{value!r} is no number", f"unset {_NICENESS}")
    return Finding(_NICENESS, f"{value}: workers run behind other processes of the host" if behind else value)


def _object_store() -> Finding:
    disk = os.statvfs(_SHARED)
    total, free = disk.f_blocks * disk.f_frsize / 2**30, disk.f_bavail * disk.f_frsize / 2**30
    wanted = _SHARE * memory_bytes() / 2**30
    store = min(wanted, _OF_SHARED * total)
    cut = f", where {_SHARE:.0%} of the memory would be {wanted:.1f}" if store < wanted else ""
    found = f"{store:.1f} GiB{cut}; /dev/shm has {total:.1f} GiB, {free:.1f} free"
    short = min(store, free) < _MIN_STORE_GIB
    remedy = (
        f"give /dev/shm {_MIN_STORE_GIB:g} GiB or more (docker run --shm-size): Ray keeps objects there"
        if short
        else ""
    )
    return Finding("object store", found, remedy)
