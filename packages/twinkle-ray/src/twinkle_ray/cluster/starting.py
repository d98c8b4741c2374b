"""The start of a cluster of the session's own: its folder, environment and token, and why it did not start."""

from __future__ import annotations

import os
import re
import resource
import secrets
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from twinkle_ray.cluster.environment import HASH_SEED
from twinkle_ray.cluster.watchdog import MARK
from twinkle_ray.python_internals import environment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NICENESS = "RAY_worker_niceness"
_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # `ray_internals.on_loopback` for the cluster's processes
_LONGEST = 24  # most bytes of a parent folder: the paths of Ray's sockets inside it have a limit of the system


def private_folder() -> Path:
    """Make a folder for Ray's files that only this user can enter: Ray makes the files readable for everyone."""
    parent = os.environ.get("RAY_TMPDIR")
    if not parent:
        parent = tempfile.gettempdir()
        parent = parent if len(os.fsencode(parent)) <= _LONGEST else "/tmp"
    return Path(tempfile.mkdtemp(prefix="twinkle-", dir=parent))


@contextmanager
def marked_children(mark: str, hash_seed: str) -> Iterator[None]:
    """Set a variable that the processes of the cluster inherit, by which they are found, and their hash seed.

    Workers get the driver's priority where the user names no other: Ray's default (niceness 15) has them starve next to
    any busy process of the host, such as the driver's own loaders, and a step then takes as long as its slowest rank.

    Args:
        mark: Its value.
        hash_seed: The seed by which Python hashes texts there.
    """
    own: Mapping[str, str] = {
        MARK: mark,
        HASH_SEED: hash_seed,
        _LOOPBACK: "0",
        "SPT_NOENV": "1",  # otherwise the titles of Ray's agents overwrite their environment in /proc
        NICENESS: os.environ.get(NICENESS, "0"),
        "RAY_USAGE_STATS_ENABLED": os.environ.get("RAY_USAGE_STATS_ENABLED", "0"),
    }
    with environment({**own, "RAY_ADDRESS": None}):
        yield


def make_token() -> None:
    """Create the token file if there is none, readable by its owner only."""
    if os.environ.get("RAY_AUTH_TOKEN"):
        return
    path = _path()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
    except FileExistsError:
        tighten_token()


def tighten_token() -> None:
    """Make the token file readable by its owner only; Ray makes it readable by everyone."""
    try:
        path = _path()
        if path.stat().st_uid == os.getuid():
            path.chmod(0o600)
    except OSError:  # there is no file, or its mode cannot be changed
        return


def _path() -> Path:
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")


_LOGS = ("gcs_server.err", "gcs_server.out", "raylet.err", "raylet.out")
# Errors of Ray's own loggers, of Python and of C++; stacks of C++ are left out.
_ERRORS = re.compile(r"^\[\d[^\]]* [EFC] .*\] |rror|annot |ailed|bad_alloc")
_LINES = 4  # of each log
_WIDTH = 300
_LIMITS = {
    "RLIMIT_AS": (
        resource.RLIMIT_AS,
        "bytes of address space (`ulimit -v`), of which Ray maps many times what it uses",
    ),
    "RLIMIT_DATA": (resource.RLIMIT_DATA, "bytes of data (`ulimit -d`)"),
}


def start_errors(folder: Path) -> str:
    """The last errors in the logs of a cluster's own processes, on lines of their own; empty without any.

    Args:
        folder: The cluster's folder.
    """
    rows = []
    for name in _LOGS:
        for path in folder.glob(f"r/session_2*/logs/{name}"):
            lines = path.read_text(errors="replace").splitlines()
            found = [line for line in lines if _ERRORS.search(line) and "(+0x" not in line]
            rows += [f"  {name}: {line.strip()[:_WIDTH]}" for line in found[-_LINES:]]
    return "\n".join(["", "its processes wrote:", *rows]) if rows else ""


def memory_limits() -> str:
    """The memory limits of this process and its children, as text; empty without any."""
    out = []
    for name, (number, what) in _LIMITS.items():
        soft, _ = resource.getrlimit(number)
        if soft != resource.RLIM_INFINITY:
            out.append(f"{name} is {soft} {what}")
    return f"; {', and '.join(out)}" if out else ""
