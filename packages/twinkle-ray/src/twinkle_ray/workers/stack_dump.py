"""Where a worker is, also while it does not answer: a signal has it write its stack, which its node reads."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAME = "twinkle-stack"
_ACTOR_FILE = "/twinkle_ray/workers/rank_actor.py"
_QUIET = ("/twinkle_ray/", "/twinkle_remote/", "/site-packages/ray/", "<frozen importlib")
_OUTER, _INNER = 4, 10  # frames of a deep stack that are told


def offer_stack() -> int:
    """Have a signal write this process's stack to a file that ends with the process; the file's descriptor, or -1.

    The signal is handled without Python, so that a worker that keeps the interpreter to itself still tells.
    """
    if sys.platform != "linux":
        return -1
    descriptor = os.memfd_create(_NAME)
    faulthandler.register(_signal(), file=descriptor, all_threads=True)
    return descriptor


def read_stack(pid: int, descriptor: int, timeout: float = 1.0) -> str:
    """The stack of a process of this host that called `offer_stack`, the innermost frame last; empty when untold."""
    path = Path(f"/proc/{pid}/fd/{descriptor}")
    try:
        if _NAME not in os.readlink(path):
            return ""
        if _state(pid) == "T":
            return f"process {pid} is stopped (SIGSTOP); SIGCONT lets it go on"
        before = path.stat().st_size
        os.kill(pid, _signal())
        until = time.monotonic() + timeout
        size = before
        while time.monotonic() < until:
            time.sleep(0.02)
            last, size = size, path.stat().st_size
            if size == last > before:
                break
        with path.open() as file:
            file.seek(before)
            return _readable(file.read())
    except OSError:  # the process is gone, or is another user's
        return ""


def _signal() -> int:
    return signal.SIGRTMAX - 2


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _readable(told: str) -> str:
    """Of all threads the one that runs tasks, without the frames that brought it there."""
    threads = [block for block in re.split(r"\n(?=Thread |Current thread )", told) if _ACTOR_FILE in block]
    frames = re.findall(r'File "(.*?)", line (\d+) in (.*)', threads[0]) if threads else []
    rows = [
        f'File "{file}", line {line}, in {name}'
        for file, line, name in reversed(frames)
        if not any(part in file for part in _QUIET)
    ]
    if len(rows) > _OUTER + _INNER:
        rows[_OUTER:-_INNER] = [f"  ... {len(rows) - _OUTER - _INNER} frames ..."]
    return "\n".join(rows)


def read_stacks(asked: Sequence[tuple[int, int]]) -> list[str]:
    """The stacks of several processes of this host, each a pid and a descriptor."""
    return [read_stack(pid, descriptor) for pid, descriptor in asked]
