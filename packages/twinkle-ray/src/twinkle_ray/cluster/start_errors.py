"""Why a cluster did not start: the last errors of its processes, and their memory limits."""

from __future__ import annotations

import re
import resource
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

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
