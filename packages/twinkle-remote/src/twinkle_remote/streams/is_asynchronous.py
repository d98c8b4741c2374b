"""Whether the stages of a stream run while its loop does."""

from __future__ import annotations

import logging

from twinkle_remote.protocol.backend import InProcessBackend
from twinkle_remote.sessions.current import active

_log = logging.getLogger("twinkle.remote")
_said: set[str] = set()


def is_asynchronous(ahead: int) -> bool:
    """Whether the session has workers in other processes; without them `ahead` has no effect, which is said once."""
    runtime = active()
    if runtime is not None and not isinstance(runtime.backend, InProcessBackend):
        return True
    if "synchronous" not in _said:
        _said.add("synchronous")
        mode = "without a session" if runtime is None else f"in mode {runtime.mode!r}"
        _log.warning("ahead=%d has no effect %s: the stream is synchronous", ahead, mode)
    return False
