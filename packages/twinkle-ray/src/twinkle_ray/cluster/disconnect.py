"""The end of this process's connection to Ray, which a raylet that does not answer would hold up for good."""

from __future__ import annotations

import logging
import threading
import time

import ray

from twinkle_ray.cluster.raylet import raylet_problem
from twinkle_ray.ray_internals import own_random_numbers
from twinkle_remote.errors import BackendError

_LIMIT = 60.0  # seconds; a busy host needs a few
_GRACE = 5.0  # seconds until a raylet with a problem is the reason
_POLL = 0.2

_log = logging.getLogger("twinkle.ray")
_leaving: threading.Thread | None = None
_reported = ""


def disconnect() -> None:
    """Disconnect from Ray; if that does not end, a warning says why, and a thread goes on with it."""
    global _leaving, _reported
    _leaving = threading.Thread(target=ray.shutdown, name="twinkle-disconnect", daemon=True)
    problem = None
    with own_random_numbers():
        _leaving.start()
        began = time.monotonic()
        while _leaving.is_alive() and (waited := time.monotonic() - began) < _LIMIT:
            problem = raylet_problem()
            if problem is not None and waited > _GRACE:
                break
            _leaving.join(_POLL)
    if _leaving.is_alive():
        _reported = (
            f"this process is still connected to Ray's cluster: {problem or 'no answer'}. Its calls have ended. "
            "Until it is disconnected, workers of this node may be left, and it cannot start another session on Ray"
        )
        _log.warning("%s", _reported)


def check_disconnected() -> None:
    """Check that the end of an earlier session has disconnected this process.

    Raises:
        BackendError: It is still connected.
    """
    if _leaving is not None and _leaving.is_alive():
        raise BackendError(_reported)
