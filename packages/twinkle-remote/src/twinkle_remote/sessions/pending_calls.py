"""The pending calls of a session, by caller and group: their number is limited, and its end waits for them."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from concurrent.futures import wait
from contextlib import suppress
from typing import TYPE_CHECKING

from twinkle_remote.context import current_worker, in_event_loop, named_elsewhere, users_part
from twinkle_remote.errors import CallTimeoutError, TwinkleError
from twinkle_remote.failures.report import SIGNALS, no_end
from twinkle_remote.protocol.messages import MAX_IN_FLIGHT
from twinkle_remote.waiting import earliest, wait_for_one

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_remote.call.pending import PendingCall
    from twinkle_remote.protocol.messages import Call
    from twinkle_remote.sessions.session import Runtime


_log = logging.getLogger("twinkle.remote")
_KEPT = 256  # failed calls without a lazy result
_LOOK_SECONDS = 0.05
_SETTLE_SECONDS = 60.0
_TOGETHER = 64  # calls that are waited for at once
_WARN_AFTER_SECONDS = 5.0
_SLOW_SECONDS = 60.0  # of the end, after which it says once where the calls are
_CLEANUP_SECONDS = 10.0  # Ray runs workers at a lower priority: on a busy host they need seconds


def _text(call: PendingCall) -> str:
    """The known failure of a call in one line."""
    if not call.failures:
        return f"{call.name} on {call.call.where()} is past its deadline; called from {call.line}"
    first = call.first_failure()
    return f"{first.method or call.name} on {first.label}: {first.type_name}: {first.message}; called from {call.line}"


def _raise_noted(call: PendingCall, note: str) -> None:
    """Raise the failure of a call with a note; where Python would take it for the end of a loop, one of its text."""
    try:
        call.wait(0.0)
    except TwinkleError as error:
        raised = no_end(error) if isinstance(error, SIGNALS) else error
        with suppress(Exception):  # the type may refuse it
            raised.add_note(note)
        raise raised.with_traceback(users_part(error.__traceback__)) from error.__cause__


class CallQueue:
    """Pending calls in the order in which they were made.

    Args:
        group: Name of the called group.
        limit: Calls that may be in flight, at or above 1.
        is_closed: Whether the session has ended, so that no more answers arrive.
    """

    def __init__(self, group: str, limit: int, is_closed: Callable[[], bool]) -> None:
        self._group = group
        self._limit = limit
        self._is_closed = is_closed
        self._calls: dict[int, PendingCall] = {}
        self._looked = 0.0

    def add(self, call: PendingCall) -> None:
        """Keep a call until it is done."""
        self._calls[id(call)] = call
        if call.done():  # before it was here
            self.remove(call)

    def late(self) -> Sequence[PendingCall]:
        """The calls that are past their deadline, looked for now and then."""
        now = time.monotonic()
        if not self._calls or now - self._looked < _LOOK_SECONDS:
            return ()
        self._looked = now
        return [call for call in self.calls() if call.overdue() is call]

    def remove(self, call: PendingCall) -> bool:
        """Remove a call; False if it is not in this queue."""
        return self._calls.pop(id(call), None) is not None

    def calls(self) -> Sequence[PendingCall]:
        """All calls."""
        while True:
            try:
                return list(self._calls.values())
            except RuntimeError:  # another thread, or the garbage collector, removed one meanwhile
                continue

    def make_room(self, name: str, timeout: float | None) -> None:
        """Wait until one more call may be made; calls that failed or are past their deadline do not count.

        Args:
            name: Class.method of the new call.
            timeout: Seconds that the new call may take; None for no limit.

        Raises:
            CallTimeoutError: The time is over, and nothing was sent.
        """
        if len(self._calls) < self._limit:
            return
        full = f"{self._limit} calls to group {self._group!r} are in flight, as many as max_in_flight allows"
        blocks = "; the event loop is blocked meanwhile: await results before more calls are made"
        until = None if timeout is None else time.monotonic() + timeout
        slow: float | None = time.monotonic() + (0.0 if in_event_loop() else _WARN_AFTER_SECONDS)
        while len(self._calls) >= self._limit and not self._is_closed():
            waiting = [call for call in self.calls() if not (call.failed() or call.overdue())]
            now = time.monotonic()
            if len(waiting) < self._limit:
                return
            if until is not None and now >= until:
                raise CallTimeoutError(f"{name} was not sent within {timeout:g} s: {full}")
            if slow is not None and now >= slow:
                slow = None
                _log.warning("%s waits: %s%s", name, full, blocks if in_event_loop() else "")
            wait_for_one(waiting[:_TOGETHER], earliest((until, slow)))

    def settle(self, timeout: float | None) -> None:
        """Wait until calls of all ranks that failed on some are over on the others, before all ranks are called again.

        A rank that failed would meet its peers' collective of the earlier call in that of the new one. Peers that wait
        for it are freed meanwhile (`free_stuck_peers`).

        Args:
            timeout: Seconds that the new call may take; None for a minute.
        """
        until = time.monotonic() + (_SETTLE_SECONDS if timeout is None else min(timeout, _SETTLE_SECONDS))
        while not self._is_closed() and time.monotonic() < until:
            split = [call for call in self.calls() if call.spec.collective and call.failed() and not call.done()]
            if not split:
                return
            split[0].next_answer(until)


_Key = tuple[str | None, int | None, str]


class PendingCalls:
    """The calls of a session that are not known to be done, and those whose failure nobody has retrieved.

    A call is pending under its caller (a worker or the driver) and the called group. A failed one is known as long as
    its lazy result exists; without one it is kept, and logged once unless its failure follows from another's.

    Args:
        limit: Number of calls that one caller may have in flight in one group, at or above 1.

    Attributes:
        closed: The session has ended, so that no more answers arrive.
        started: Number of calls that were made so far.
    """

    def __init__(self, limit: int = MAX_IN_FLIGHT) -> None:
        self._limit = limit
        self._queues: dict[_Key, CallQueue] = {}
        self._held: weakref.WeakValueDictionary[int, PendingCall] = weakref.WeakValueDictionary()  # with a lazy result
        self._kept: dict[int, PendingCall] = {}
        self._logged: weakref.WeakSet[PendingCall] = weakref.WeakSet()
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
        here, group = current_worker(), call.component.group
        key = (here.group, here.rank, group)
        queue = self._queues.get(key)
        if queue is None:
            with self._lock:
                fresh = CallQueue(group, self._limit, lambda: self.closed)
                queue = self._queues.setdefault(key, fresh)
        self.started += 1
        if here.group != group or here.rank not in call.ranks:
            queue.make_room(call.name, timeout)
            if call.spec.collective:
                queue.settle(timeout)
        return queue

    def completed(self, call: PendingCall) -> None:
        """Remove a call that is done; a failure that nobody has retrieved is known from now on."""
        self.failed(call)  # first: who looks meanwhile finds it here or there
        for queue in tuple(self._queues.values()):
            if queue.remove(call):
                break

    def failed(self, call: PendingCall) -> None:
        """Know of a call that has failed on a rank; called again when its lazy result is deleted."""
        if self.closed or not call.unseen():
            return
        if call.held:
            self._held[id(call)] = call
            return
        self._held.pop(id(call), None)
        follows = call.follows()
        alike = [one for one in tuple(self._kept.values()) if one.follows() == follows]  # followers take no other place
        retrieved = [one for one in alike if not one.unseen()] if len(alike) >= _KEPT else []
        for one in retrieved:  # with their cause
            self._kept.pop(id(one), None)
        if len(alike) - len(retrieved) < _KEPT:
            self._kept[id(call)] = call
        if not (call.handed_on or follows):
            self._log(call)

    def seen(self, call: PendingCall) -> None:
        """Called when the failure of a call was raised to a caller."""
        self._held.pop(id(call), None)
        self._kept.pop(id(call), None)

    def raise_not_retrieved(self) -> None:
        """Raise, in the driver's own threads, the first failure whose result nobody has any more.

        Each call, `get`, `sync()` and batch of the driver begins with it, so a loop that drops its results stops where
        it broke. A failure whose lazy result exists is its owner's; of one that was handed on, the consumer's owner's.

        Raises:
            TwinkleError: The error that the call itself raises, the cause first.
        """
        late = [call for queue in tuple(self._queues.values()) for call in queue.late()]
        if not (late or self._kept) or named_elsewhere() or current_worker().rank is not None:
            return
        for call in late:
            self.failed(call)
        known = tuple(self._kept.values())
        if dropped := [call for call in known if not (call.held or call.handed_on) and call.unseen()]:
            first = min(dropped, key=lambda call: call.failed_at())
            _raise_noted(first, "  nobody had taken the result of this call: the program's next call raises it")

    def raise_first(self) -> None:
        """Raise the first failure that nobody has retrieved; the others are logged. All count as retrieved then.

        Raises:
            TwinkleError: The error that the call itself raises.
        """
        left = self.not_retrieved()
        for call in left[1:]:
            self._log(call)
            call.seen = True
        self._held.clear()
        self._kept.clear()
        if left:
            count = len(left) - 1
            more = f"; {count} more like it {'is' if count == 1 else 'are'} logged" if count else ""
            _raise_noted(left[0], f"  no caller had waited for this call when the session ended{more}")

    def log_all(self) -> None:
        """Log every failure that nobody has retrieved."""
        for call in self.not_retrieved():
            self._log(call)

    def not_retrieved(self) -> Sequence[PendingCall]:
        """The calls whose failure, or passed deadline, nobody has retrieved, in the order of these."""
        held = [call for known in self._held.valuerefs() if (call := known()) is not None]
        known = {id(call): call for call in (*held, *tuple(self._kept.values()), *self.calls())}
        return sorted((call for call in known.values() if call.unseen()), key=lambda call: call.failed_at())

    def _log(self, call: PendingCall) -> None:
        if call not in self._logged:
            self._logged.add(call)
            _log.error("a call failed, and no caller waited for it: %s", _text(call))

    def calls(self) -> Sequence[PendingCall]:
        """All calls."""
        return [call for queue in tuple(self._queues.values()) for call in queue.calls()]

    def drain(self, seconds: float | None) -> Sequence[PendingCall]:
        """Wait until all calls are done, except those that failed or are past their deadline.

        Args:
            seconds: Time limit; None for no limit.

        Returns:
            The calls that are not done.
        """
        began = time.monotonic()
        until = None if seconds is None else began + seconds
        warnings = [began + _SLOW_SECONDS, began + _WARN_AFTER_SECONDS]  # the next one is the last
        while True:
            started = self.started
            left = [call for call in self.calls() if not (call.done() or _is_given_up(call))]
            now = time.monotonic()
            if (not left and started == self.started) or (until is not None and now >= until):
                return left
            if left and warnings and now >= warnings[-1]:
                warnings.pop()
                late = "" if warnings else f": {left[0].lateness(_SLOW_SECONDS)}"
                _log.warning("the session ends when %s done; Ctrl-C gives up%s", names_of(left, "is", "are"), late)
            if left:
                wait_for_one(left[:_TOGETHER], earliest((until, *warnings[-1:])))


def _is_given_up(call: PendingCall) -> bool:
    return call.prefetched or call.failed() or call.overdue() is not None


def names_of(calls: Sequence[PendingCall], one: str = "", several: str = "") -> str:
    """Number and names of calls for a message, with the verb that follows."""
    shown = ", ".join(sorted({call.name for call in calls}))
    count, verb = (f"{len(calls)} calls", several) if len(calls) > 1 else (f"{len(calls)} call", one)
    return f"{count} ({shown}) {verb}".rstrip()


def end_calls(runtime: Runtime, seconds: float | None, *, quietly: bool = False) -> None:
    """Wait for the calls in flight; those that workers make end before the tasks that make them.

    Args:
        runtime: The session's.
        seconds: How long; None for as long as it takes, 0 to give them up.
        quietly: An error is on its way already: failures are logged, and nothing is raised.

    Raises:
        CallTimeoutError: The calls took longer than `seconds` (above 0), or an unseen one is past its deadline.
        TwinkleError: A call that no caller had waited for failed; as the call would have raised it.
    """
    left = runtime.in_flight.drain(seconds)
    if left:
        _log.warning("shutdown: %s in flight, the results are lost", names_of(left))
    if quietly:
        runtime.in_flight.log_all()
        return
    runtime.in_flight.raise_first()
    if seconds and left:
        raise CallTimeoutError(f"shutdown: {names_of(left, 'was', 'were')} not done after {seconds:g} s, and given up")


def cancel_calls(runtime: Runtime) -> None:
    """Cancel the async calls in flight, and give their cleanup a short time before the workers end."""
    calls = [call for call in runtime.in_flight.calls() if call.spec.on_loop and not call.done()]
    for call in calls:
        call.cancel()
    wait([reply for call in calls for reply in call.pending()], _CLEANUP_SECONDS)
