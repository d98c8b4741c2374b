"""The pending calls of a session: limited in number, waited for at its end, and no failure is lost."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from twinkle_remote.context import current_worker
from twinkle_remote.sessions.call_queue import CallQueue
from twinkle_remote.sessions.unseen_failures import UnseenFailures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.call.pending_call import PendingCall
    from twinkle_remote.protocol.backend import Backend

_log = logging.getLogger("twinkle.remote")
MAX_IN_FLIGHT = 1024
_TELL_AFTER_SECONDS = 5.0
_TELL_EVERY_SECONDS = 60.0
_SLICE_SECONDS = 1.0
_TOGETHER = 64  # calls that are waited for at once

_Key = tuple[str | None, int | None, str]


class PendingCalls:
    """Calls that are not known to be done, by the worker that made them (or the driver) and the group that was called.

    Args:
        backend: Where they run.
        limit: How many one caller may have in flight in one group; at or above 1.

    Attributes:
        closed: A shutdown is over, and nothing comes any more.
    """

    def __init__(self, backend: Backend, limit: int = MAX_IN_FLIGHT) -> None:
        self._backend = backend
        self._limit = limit
        self._queues: dict[_Key, CallQueue] = {}
        self._unseen = UnseenFailures()
        self.closed = False
        self._lock = threading.Lock()

    def queue(self, group: str, ranks: Sequence[int], name: str, timeout: float | None) -> CallQueue:
        """Where a call belongs that is to be made now, after waiting until there is room for it.

        Args:
            group: Name of the called group.
            ranks: Ranks that are to be called. A worker that calls itself does not wait: no room would come.
            name: Class.method.
            timeout: Seconds that the call may take.

        Raises:
            CallTimeoutError: There was no room in that time.
        """
        here = current_worker()
        key = (here.group, here.rank, group)
        queue = self._queues.get(key)
        if queue is None:
            with self._lock:
                fresh = CallQueue(group, self._limit, self._backend, lambda: self.closed)
                queue = self._queues.setdefault(key, fresh)
        if here.group != group or here.rank not in ranks:
            queue.make_room(name, timeout)
        return queue

    def completed(self, call: PendingCall) -> None:
        """Remove a call that is done; a failure that no caller was given is kept."""
        for queue in tuple(self._queues.values()):
            if queue.remove(call):
                break
        if not self.closed and call.unseen():
            self._unseen.add(call)

    def seen(self, call: PendingCall) -> None:
        """A caller was given the call's failure."""
        self._unseen.remove(call)

    def raise_unseen(self) -> None:
        """Raise the first failure that no caller was given, and log the others.

        Raises:
            TwinkleError: As the call would have raised it.
        """
        self._unseen.raise_first(self.calls())

    def tell_unseen(self) -> None:
        """Log every failure that no caller was given."""
        self._unseen.tell_all(self.calls())

    def calls(self) -> Sequence[PendingCall]:
        """All of them."""
        return [call for queue in tuple(self._queues.values()) for call in queue.calls()]

    def poll(self) -> None:
        """Take in the answers that have arrived; never waits."""
        for call in self.calls():
            call.done()

    def drain(self, seconds: float | None) -> Sequence[PendingCall]:
        """Wait until all are done, but for those that failed or are past their deadline.

        Args:
            seconds: How long; None for as long as it takes.

        Returns:
            Those that are not done.
        """
        began = told = time.monotonic()
        told += _TELL_AFTER_SECONDS
        while True:
            self.poll()
            left = [call for call in self.calls() if not (call.prefetched or call.failed() or call.late())]
            now = time.monotonic()
            remaining = _SLICE_SECONDS if seconds is None else min(_SLICE_SECONDS, began + seconds - now)
            if not left or remaining <= 0:
                return left
            if now >= told:
                told = now + _TELL_EVERY_SECONDS
                _log.warning("the session ends when %s done; Ctrl-C gives up", names_of(left, "is", "are"))
            replies = [reply for call in left[:_TOGETHER] for reply in call.pending()]
            if replies:
                self._backend.wait(replies, remaining)


def names_of(calls: Sequence[PendingCall], one: str = "", several: str = "") -> str:
    """Calls as a log line lists them, with the verb that follows."""
    shown = ", ".join(sorted({call.name for call in calls}))
    count, verb = (f"{len(calls)} calls", several) if len(calls) > 1 else (f"{len(calls)} call", one)
    return f"{count} ({shown}) {verb}".rstrip()
