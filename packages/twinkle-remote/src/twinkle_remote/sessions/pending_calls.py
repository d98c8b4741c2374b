"""The pending calls of a session, by caller and group: their number is limited, and its end waits for them.

Waits for calls are here too, until times on the monotonic clock: the one place in which a thread of a program is held
up. Only locks of the interpreter's own are taken: Ctrl-C may come at any step, and leaves none of them taken.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from concurrent.futures import wait
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from twinkle_remote.context import current_worker, in_event_loop, named_elsewhere, users_part
from twinkle_remote.errors import CallTimeoutError, TwinkleError
from twinkle_remote.failures.report import SIGNALS, no_end
from twinkle_remote.protocol.messages import MAX_IN_FLIGHT
from twinkle_remote.sessions.seeding import others_construct

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from twinkle_remote.call.pending import PendingCall
    from twinkle_remote.protocol.messages import Call

R = TypeVar("R")

_log = logging.getLogger("twinkle.remote")
_SLICE_SECONDS = 0.5  # Python sees a Ctrl-C that comes just before a wait at the end of the wait
_KEPT = 256  # failed calls without a lazy result
_LOOK_SECONDS = 0.05
_SETTLE_SECONDS = 60.0
_TOGETHER = 64  # calls that are waited for at once
_WARN_AFTER_SECONDS = 5.0
_SLOW_SECONDS = 60.0  # of the end, after which it says once where the calls are
_CLEANUP_SECONDS = 10.0  # Ray runs workers at a lower priority: on a busy host they need seconds


def wait_for_calls(
    calls: Sequence[PendingCall], until: float | None, is_there: Callable[[], bool], *, each: bool = False
) -> bool:
    """Wait for something that calls bring about; other ranks of this process may run constructors meanwhile.

    Args:
        calls: The calls, each of which ends a wait when it is over.
        until: A time on the monotonic clock, which ends it too; None for no limit.
        is_there: Whether it is there, which is returned.
        each: Each answer of a rank may bring it about.
    """
    if is_there():
        return True
    bell = threading.Lock()
    bell.acquire()

    def ring() -> None:
        with suppress(RuntimeError):  # another answer has rung it, and nobody has heard it yet
            bell.release()

    try:
        for call in calls:
            call.notify(ring, each=each)
        with others_construct():
            while not is_there() and (left := float("inf") if until is None else until - time.monotonic()) > 0.0:
                bell.acquire(timeout=min(left, _SLICE_SECONDS))
    finally:
        for call in calls:
            call.forget(ring)
    return is_there()


def wait_for_one(calls: Sequence[PendingCall], until: float | None) -> None:
    """Wait until one of several calls is over, one is late, or a time on the monotonic clock."""
    until = earliest((until, *[call.next_deadline() for call in calls]))
    wait_for_calls(calls, until, lambda: any(call.is_over for call in calls))


def earliest(limits: Iterable[float | None]) -> float | None:
    """The first of several times, or the shortest of several durations; None where none limits."""
    return min([limit for limit in limits if limit is not None], default=None)


async def answer_of(calls: Sequence[PendingCall], result: Callable[[], R]) -> R:
    """Await calls, and read their result in a thread: it may be large, and lie elsewhere.

    A cancelled task ends at once, and the calls run on.

    Args:
        calls: They are over before `result` is called, or the first of them has failed or is late.
        result: Returns the value, or raises.
    """
    from asyncio import to_thread  # half of the import time of this package

    def value_or_error() -> tuple[R | None, BaseException | None]:
        try:
            return result(), None
        except StopIteration as error:
            return None, no_end(error)  # as PEP 479

    await over(calls)
    value, error = await to_thread(value_or_error)
    if error is not None:
        raise error
    return value  # type: ignore[return-value]  # without an error there is a value


async def over(calls: Sequence[PendingCall]) -> None:
    """Await that all calls are over, or one has failed or is late."""
    from asyncio import Event, get_running_loop, wait_for  # as above

    def tell() -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(answered.set)

    loop, answered = get_running_loop(), Event()
    for call in calls:
        call.notify(tell)
    while not (all(call.is_over for call in calls) or any(call.failed() or call.overdue() for call in calls)):
        answered.clear()
        until = earliest([call.next_deadline() for call in calls])
        with suppress(TimeoutError):  # a deadline has passed, which the loop looks at
            await wait_for(answered.wait(), None if until is None else max(0.0, until - time.monotonic()))


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
        self._pending: dict[_Key, dict[PendingCall, None]] = {}
        self._held: weakref.WeakKeyDictionary[PendingCall, None] = weakref.WeakKeyDictionary()  # with a lazy result
        self._kept: dict[PendingCall, None] = {}
        self._looked = 0.0
        self.closed = False
        self.started = 0

    def make_room(self, call: Call) -> dict[PendingCall, None]:
        """Wait until there is room for a new call, within its time limit; returns the place to `add` it to.

        Calls that failed or are past their deadline take no room. A worker that calls itself does not wait, because it
        would wait for itself. Before a collective call, which all ranks enter together, an earlier such call has to be
        over on each.

        Raises:
            CallTimeoutError: There was no room within the timeout, and nothing was sent.
        """
        here, group = current_worker(), call.component.group
        pending = self._pending.setdefault((here.group, here.rank, group), {})
        self.started += 1
        if here.group != group or here.rank not in call.ranks:
            if len(pending) >= self._limit:
                self._wait_for_room(pending, call)
            if call.spec.collective:
                self._settle(pending, call.spec.timeout)
        return pending

    def _wait_for_room(self, pending: dict[PendingCall, None], call: Call) -> None:
        full = f"{self._limit} calls to group {call.component.group!r} are in flight, as many as max_in_flight allows"
        blocks = "; the event loop is blocked meanwhile: await results before more calls are made"
        began, seconds = time.monotonic(), call.spec.timeout
        until = None if seconds is None else began + seconds
        slow: float | None = began + (0.0 if in_event_loop() else _WARN_AFTER_SECONDS)
        while len(pending) >= self._limit and not self.closed:
            waiting = [one for one in tuple(pending.copy()) if not (one.failed() or one.overdue())]
            now = time.monotonic()
            if len(waiting) < self._limit:
                return
            if until is not None and now >= until:
                raise CallTimeoutError(f"{call.name} was not sent within {seconds:g} s: {full}")
            if slow is not None and now >= slow:
                slow = None
                _log.warning("%s waits: %s%s", call.name, full, blocks if in_event_loop() else "")
            wait_for_one(waiting[:_TOGETHER], earliest((until, slow)))

    def _settle(self, pending: dict[PendingCall, None], timeout: float | None) -> None:
        """Wait until calls of all ranks that failed on some are over on the others, before all ranks are called again.

        A rank that failed would meet its peers' collective of the earlier call in that of the new one. Peers that wait
        for it are freed meanwhile (`free_stuck_peers`).
        """
        until = time.monotonic() + (_SETTLE_SECONDS if timeout is None else min(timeout, _SETTLE_SECONDS))
        while not self.closed and time.monotonic() < until:
            split = [one for one in tuple(pending.copy()) if one.spec.collective and one.failed() and not one.done()]
            if not split:
                return
            split[0].next_answer(until)

    def completed(self, call: PendingCall) -> None:
        """Remove a call that is done; a failure that nobody has retrieved is known from now on."""
        self.failed(call)  # first: who looks meanwhile finds it here or there
        for pending in tuple(self._pending.values()):
            pending.pop(call, None)

    def failed(self, call: PendingCall) -> None:
        """Know of a call that has failed on a rank; called again when its lazy result is deleted."""
        if self.closed or not call.unseen():
            return
        if call.held:
            self._held[call] = None
            return
        self._held.pop(call, None)
        follows = call.follows()
        alike = [one for one in tuple(self._kept) if one.follows() == follows]  # followers take no other place
        retrieved = [one for one in alike if not one.unseen()] if len(alike) >= _KEPT else []
        for one in retrieved:  # with their cause
            self._kept.pop(one, None)
        if len(alike) - len(retrieved) < _KEPT:
            self._kept[call] = None
        if not (call.handed_on or follows):
            self._log(call)

    def seen(self, call: PendingCall) -> None:
        """Called when the failure of a call was raised to a caller."""
        self._held.pop(call, None)
        self._kept.pop(call, None)

    def raise_not_retrieved(self) -> None:
        """Raise, in the driver's own threads, the first failure whose result nobody has any more.

        Each call, `get`, `sync()` and batch of the driver begins with it, so a loop that drops its results stops where
        it broke. A failure whose lazy result exists is its owner's; of one that was handed on, the consumer's owner's.

        Raises:
            TwinkleError: The error that the call itself raises, the cause first.
        """
        late: Sequence[PendingCall] = ()
        if (now := time.monotonic()) - self._looked >= _LOOK_SECONDS:
            self._looked, late = now, [call for call in self.calls() if call.overdue() is call]
        if not (late or self._kept) or named_elsewhere() or current_worker().rank is not None:
            return
        for call in late:
            self.failed(call)
        known = tuple(self._kept)
        if dropped := [call for call in known if not (call.held or call.handed_on) and call.unseen()]:
            first = min(dropped, key=lambda call: call.failed_at())
            _raise_noted(first, "  nobody had taken the result of this call: the program's next call raises it")

    def raise_first(self) -> None:
        """Raise the first failure that nobody has retrieved; the others are logged. All count as retrieved then.

        Raises:
            TwinkleError: The error that the call itself raises.
        """
        left = self.log_all(but=1)
        for call in left[1:]:
            call.seen = True
        self._held.clear()
        self._kept.clear()
        if left:
            count = len(left) - 1
            more = f"; {count} more like it {'is' if count == 1 else 'are'} logged" if count else ""
            _raise_noted(left[0], f"  no caller had waited for this call when the session ended{more}")

    def log_all(self, but: int = 0) -> Sequence[PendingCall]:
        """The calls whose failure, or passed deadline, nobody has retrieved, first ones first; logged, but for some."""
        held = [call for known in self._held.keyrefs() if (call := known()) is not None]
        known = dict.fromkeys((*held, *tuple(self._kept), *self.calls()))
        left = sorted((call for call in known if call.unseen()), key=lambda call: call.failed_at())
        for call in left[but:]:
            self._log(call)
        return left

    def _log(self, call: PendingCall) -> None:
        if not call.logged:
            call.logged = True
            first = call.first_failure() if call.failures else None
            text = f"{call.name} on {call.call.where()} is past its deadline"
            if first is not None:
                text = f"{first.method or call.name} on {first.label}: {first.type_name}: {first.message}"
            _log.error("a call failed, and no caller waited for it: %s; called from %s", text, call.line)

    def calls(self) -> Sequence[PendingCall]:
        """All calls."""
        return [call for pending in tuple(self._pending.values()) for call in pending.copy()]

    def drain(self, seconds: float | None) -> Sequence[PendingCall]:
        """Wait until all calls are done, except those that failed or are past their deadline.

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
                verb = "is" if len(left) == 1 else "are"
                _log.warning("the session ends when %s %s done; Ctrl-C gives up%s", names_of(left), verb, late)
            if left:
                wait_for_one(left[:_TOGETHER], earliest((until, *warnings[-1:])))

    def end(self, *, quietly: bool = False) -> None:
        """Wait for the calls in flight; those that workers make end before the tasks that make them.

        Args:
            quietly: An error is on its way already: calls are given up, failures are logged, and nothing is raised.

        Raises:
            TwinkleError: A call that no caller had waited for failed, or is late; as the call would have raised it.
        """
        if left := self.drain(0.0 if quietly else None):
            _log.warning("shutdown: %s in flight, the results are lost", names_of(left))
        if quietly:
            self.log_all()
        else:
            self.raise_first()

    def cancel(self) -> None:
        """Cancel the coroutines in flight, and give their cleanup a short time before the workers end."""
        calls = [call for call in self.calls() if call.spec.on_loop and not call.done()]
        for call in calls:
            call.give_up()
        wait([reply for call in calls for reply in call.pending()], _CLEANUP_SECONDS)


def _raise_noted(call: PendingCall, note: str) -> None:
    """Raise the failure of a call with a note; where Python would take it for the end of a loop, one of its text."""
    try:
        call.wait(0.0)
    except TwinkleError as error:
        raised = no_end(error) if isinstance(error, SIGNALS) else error
        with suppress(Exception):  # the type may refuse it
            raised.add_note(note)
        raise raised.with_traceback(users_part(error.__traceback__)) from error.__cause__


def _is_given_up(call: PendingCall) -> bool:
    return call.prefetched or call.failed() or call.overdue() is not None


def names_of(calls: Sequence[PendingCall]) -> str:
    """Number and names of calls for a message."""
    return f"{len(calls)} call{'s' * (len(calls) > 1)} ({', '.join(sorted({call.name for call in calls}))})"
