"""The stack of a worker that does not answer: a signal makes it write its stack, which its node reads."""

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
_QUIET = ("/twinkle_ray/", "/twinkle_remote/", "/site-packages/ray/", "<frozen importlib", "<frozen runpy>")
_OUTER, _INNER = 4, 10  # frames of a deep stack that are shown
_OWN = 6  # frames of Twinkle and Ray that are shown if there are no others


def offer_stack() -> int:
    """Make a signal write this process's stack to a file in memory; return the file's descriptor, or -1.

    The signal is handled without Python, so that a worker that holds the GIL writes its stack too.
    """
    if sys.platform != "linux":
        return -1
    descriptor = os.memfd_create(_NAME)
    faulthandler.register(_signal(), file=descriptor, all_threads=True)
    return descriptor


def read_stack(pid: int, descriptor: int, timeout: float = 1.0) -> str:
    """The stack of a process of this host that called `offer_stack`, the innermost frame last, or a reason without one.

    Args:
        pid: The process.
        descriptor: What `offer_stack` returned there.
        timeout: Seconds that it may take to write.
    """
    path = Path(f"/proc/{pid}/fd/{descriptor}")
    try:
        if _NAME not in os.readlink(path):
            return f"process {pid} offers no stack: it is not the process of the worker"
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
        if size == before:
            return f"process {pid} wrote no stack within {timeout:g} s; its state in the kernel is {_state(pid)}"
        with path.open() as file:
            file.seek(before)
            return _readable(file.read())
    except (ProcessLookupError, FileNotFoundError):
        return f"process {pid} is gone"
    except OSError as error:
        return f"the stack of process {pid} cannot be read: {error}"


def is_alive(pid: int, descriptor: int) -> bool:
    """Whether the process of this host that called `offer_stack` is still there."""
    try:
        return _NAME in os.readlink(f"/proc/{pid}/fd/{descriptor}")
    except OSError:
        return False


def _signal() -> int:
    return signal.SIGRTMAX - 2


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _readable(dump: str) -> str:
    """The thread that runs tasks, without the frames of Twinkle and Ray if it has others."""
    threads = [block for block in re.split(r"\n(?=Thread |Current thread )", dump) if _ACTOR_FILE in block]
    if not threads:
        return "it runs nothing: it waits for the arguments of the call, or for the call itself"
    frames = re.findall(r'File "(.*?)", line (\d+) in (.*)', threads[0])
    own = [frame for frame in frames if not any(part in frame[0] for part in _QUIET)]
    rows = [f'File "{file}", line {line}, in {name}' for file, line, name in reversed(own or frames[:_OWN])]
    if not own:
        return "\n".join(["in Twinkle's own code:", *rows])
    if len(rows) > _OUTER + _INNER:
        rows[_OUTER:-_INNER] = [f"  ... {len(rows) - _OUTER - _INNER} frames ..."]
    return "\n".join(rows)


def read_stacks(asked: Sequence[tuple[int, int]]) -> list[str]:
    """The stacks of several processes of this host, each a pid and a descriptor."""
    return [read_stack(pid, descriptor) for pid, descriptor in asked]
