"""The pending calls of a session: their number is limited, and the end of the session waits for them."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from twinkle_remote.context import caller
from twinkle_remote.protocol.defaults import MAX_IN_FLIGHT
from twinkle_remote.protocol.own_calls import OwnCalls
from twinkle_remote.sessions.in_flight.call_queue import CallQueue
from twinkle_remote.sessions.in_flight.unseen_failures import UnseenFailures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.protocol.backend import Backend
    from twinkle_remote.protocol.call import Call
    from twinkle_remote.protocol.own_calls import UnseenFailure
    from twinkle_remote.sessions.in_flight.call_in_flight import CallInFlight

_log = logging.getLogger("twinkle.remote")
_WARN_AFTER_SECONDS = 5.0
_WARN_EVERY_SECONDS = 60.0
_SLICE_SECONDS = 1.0
_TOGETHER = 64  # calls that are waited for at once

_Key = tuple[str | None, int | None, str]


class PendingCalls:
    """Calls that are not known to be done, by caller (a worker or the driver) and called group.

    Args:
        backend: The backend that runs them.
        limit: Number of calls that one caller may have in flight in one group, at or above 1.

    Attributes:
        closed: The session has ended, so that no more answers arrive.
        started: Number of calls that were made so far.
    """

    def __init__(self, backend: Backend, limit: int = MAX_IN_FLIGHT) -> None:
        self._backend = backend
        self._limit = limit
        self._queues: dict[_Key, CallQueue] = {}
        self._unseen = UnseenFailures()
        self.closed = False
        self.started = 0
        self._lock = threading.Lock()

    def queue(self, call: Call, timeout: float | None) -> CallQueue:
        """Wait until there is room for a new call; returns the queue to add it to.

        Args:
            call: The call. A worker that calls itself does not wait, because it would wait for itself. Before a
                collective call, which all ranks enter together, an earlier such call has to be over on each.
            timeout: Seconds that the call may wait; None for no limit.

        Raises:
            CallTimeoutError: There was no room within the timeout.
        """
        here, group = caller(), call.component.group
        key = (here.group, here.rank, group)
        queue = self._queues.get(key)
        if queue is None:
            with self._lock:
                fresh = CallQueue(group, self._limit, self._backend, lambda: self.closed)
                queue = self._queues.setdefault(key, fresh)
        self.started += 1
        if here.group != group or here.rank not in call.ranks:
            queue.make_room(call.name, timeout)
            if call.spec.collective:
                queue.settle(timeout)
        return queue

    def completed(self, call: CallInFlight) -> None:
        """Remove a call that is done; a failure that no caller has seen is kept."""
        for queue in tuple(self._queues.values()):
            if queue.remove(call):
                break
        if not self.closed and call.unseen():
            self._unseen.add(call)

    def seen(self, call: CallInFlight) -> None:
        """Called when the failure of a call was raised to a caller."""
        self._unseen.remove(call)

    def take_unseen(self) -> tuple[UnseenFailure | None, int]:
        """The first failure that no caller has seen, and the number of the others, which are logged."""
        return self._unseen.take_first(self.calls())

    def log_unseen(self) -> None:
        """Log every failure that no caller has seen."""
        self._unseen.log_all(self.calls())

    def calls(self) -> Sequence[CallInFlight]:
        """All calls."""
        return [call for queue in tuple(self._queues.values()) for call in queue.calls()]

    def poll(self) -> None:
        """Read the answers that have arrived; never waits."""
        for call in self.calls():
            call.done()

    def drain(self, seconds: float | None) -> Sequence[CallInFlight]:
        """Wait until all calls are done, except those that failed or are past their deadline.

        Args:
            seconds: Time limit; None for no limit.

        Returns:
            The calls that are not done.
        """
        began = time.monotonic()
        next_warning = began + _WARN_AFTER_SECONDS
        while True:
            started = self.started
            self.poll()
            # Ctrl-C may have left a call here whose answers were read.
            left = [call for call in self.calls() if call.pending() and not _is_given_up(call)]
            now = time.monotonic()
            remaining = _SLICE_SECONDS if seconds is None else min(_SLICE_SECONDS, began + seconds - now)
            if (not left and started == self.started) or remaining <= 0:
                return left
            if now >= next_warning:
                next_warning = now + _WARN_EVERY_SECONDS
                _log.warning("the session ends when %s done; Ctrl-C gives up", names_of(left, "is", "are"))
            replies = [reply for call in left[:_TOGETHER] for reply in call.pending()]
            if replies:
                self._backend.wait(replies, remaining)

    def given_up(self) -> frozenset[tuple[str, int]]:
        """Group and rank of the workers that have not answered calls which are not waited for."""
        queues = tuple(self._queues.items())
        left = [(key[2], call) for key, queue in queues for call in queue.calls() if _is_given_up(call)]
        return frozenset((group, reply.rank) for group, call in left for reply in call.pending())

    def report(self, seconds: float) -> OwnCalls:
        """The report of this worker at the end of a session: its calls, waited for during so many seconds."""
        left = self.drain(seconds)
        unseen, others = self.take_unseen()
        return OwnCalls(self.started, tuple(call.name for call in left), self.given_up(), unseen, others)


def _is_given_up(call: CallInFlight) -> bool:
    return call.prefetched or call.failed() or call.overdue() is not None


def names_of(calls: Sequence[CallInFlight], one: str = "", several: str = "") -> str:
    """Number and names of calls for a message, with the verb that follows."""
    shown = ", ".join(sorted({call.name for call in calls}))
    count, verb = (f"{len(calls)} calls", several) if len(calls) > 1 else (f"{len(calls)} call", one)
    return f"{count} ({shown}) {verb}".rstrip()
