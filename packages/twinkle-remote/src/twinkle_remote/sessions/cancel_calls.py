"""Cancels the async calls that are in flight when a session ends."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twinkle_remote.sessions.runtime import Runtime

_CLEANUP_SECONDS = 10.0  # Ray runs workers at a lower priority: on a busy host they need seconds


def cancel_calls(runtime: Runtime) -> None:
    """Cancel the async calls in flight, and give their cleanup a short time before the workers end."""
    calls = [call for call in runtime.in_flight.calls() if call.spec.on_loop and not call.done()]
    for call in calls:
        call.cancel()
    until = time.monotonic() + _CLEANUP_SECONDS
    while replies := [reply for call in calls for reply in call.pending()]:
        left = until - time.monotonic()
        if left <= 0 or not runtime.backend.wait(replies, left):
            return
        for call in calls:
            call.done()
