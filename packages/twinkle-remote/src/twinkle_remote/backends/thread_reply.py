"""The pending answer of a thread."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.protocol.messages import Outcome


class ThreadReply:
    """The pending answer of a thread."""

    __slots__ = ("_lock", "_waiters", "outcome", "rank", "sent")

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.sent = 0
        self.outcome: Outcome | None = None
        self._lock = threading.Lock()
        self._waiters: list[threading.Event] = []

    def done(self) -> bool:
        """Whether the outcome is there."""
        return self.outcome is not None

    def settle(self, outcome: Outcome) -> None:
        """Give the outcome, once; a later one is dropped."""
        with self._lock:
            if self.outcome is not None:
                return
            self.outcome = outcome
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.set()

    def tell(self, waiter: threading.Event) -> bool:
        """Have an event set when the outcome is there; False when it is there already."""
        with self._lock:
            if self.outcome is not None:
                return False
            self._waiters.append(waiter)
            return True

    def forget(self, waiter: threading.Event) -> None:
        """Undo `tell`."""
        with self._lock:
            if waiter in self._waiters:
                self._waiters.remove(waiter)


def wait_for_any(replies: Sequence[ThreadReply], timeout: float | None) -> Sequence[ThreadReply]:
    """Those replies that are done, after waiting for one at least; empty when the time is over."""
    ready = [reply for reply in replies if reply.outcome is not None]
    if ready or timeout == 0.0:
        return ready
    event = threading.Event()
    if all(reply.tell(event) for reply in replies):
        try:
            event.wait(timeout)
        finally:
            for reply in replies:
                reply.forget(event)
    return [reply for reply in replies if reply.outcome is not None]
