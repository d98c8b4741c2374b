"""Waits for calls, until times on the monotonic clock: the one place in which a thread of a program is held up.

Only locks of the interpreter's own are taken: Ctrl-C may come at any step, and leaves none of them taken.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from twinkle_remote.failures.report import no_end
from twinkle_remote.sessions.seeding import others_construct

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from twinkle_remote.call.pending import PendingCall

R = TypeVar("R")
_SLICE_SECONDS = 0.5  # Python sees a Ctrl-C that comes just before a wait at the end of the wait


class Awaited:
    """A call, as those that wait for it know it.

    Attributes:
        is_over: A rank has failed, all have answered, or the session has ended.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._answered = False
        self._lock = threading.Lock()
        self._told: list[Callable[[], None]] = []
        self._told_over: list[Callable[[], None]] = []

    def when_answered(self, tell: Callable[[], None]) -> None:
        """Call a function after each answer from now on, and at once if some are there; it returns at once."""
        with self._lock:
            self._told.append(tell)
            some = self._answered
        if some:
            tell()

    def _tell(self, *, last: bool) -> None:
        """Call the functions for one more answer, which was taken in."""
        with self._lock:
            self._answered = True
            told = tuple(self._told)
            if last:
                self._told.clear()
        for tell in told:
            tell()

    def when_over(self, tell: Callable[[], None]) -> None:
        """Call a function once when it is over, at once if it is; it returns at once."""
        with self._lock:
            if not self.is_over:
                self._told_over.append(tell)
                return
        tell()

    def forget(self, tell: Callable[[], None]) -> None:
        """Call a function no more."""
        with self._lock:
            for told in (self._told, self._told_over):
                if tell in told:
                    told.remove(tell)

    def end_waits(self) -> None:
        """Free who waits for it: it is over, or the session has ended."""
        with self._lock:
            self.is_over = True
            told, self._told_over = self._told_over, []
        for tell in told:
            tell()


def wait_for_calls(
    calls: Sequence[Awaited], until: float | None, is_over: Callable[[], bool], *, each_answer: bool = False
) -> bool:
    """Wait for something that calls bring about; other ranks of this process may run constructors meanwhile.

    Args:
        calls: The calls, each of which ends a wait when it is over.
        until: A time on the monotonic clock, which ends it too; None for no limit.
        is_over: Whether it is there.
        each_answer: Each answer of a rank may bring it about.

    Returns:
        Whether it is there.
    """
    if is_over():
        return True
    bell = threading.Lock()
    bell.acquire()

    def ring() -> None:
        with suppress(RuntimeError):  # another answer has rung it, and nobody has heard it yet
            bell.release()

    try:
        for call in calls:
            call.when_answered(ring) if each_answer else call.when_over(ring)
        with others_construct():
            while not is_over() and (left := seconds_to(until)) > 0.0:
                bell.acquire(timeout=min(left, _SLICE_SECONDS))
    finally:
        for call in calls:
            call.forget(ring)
    return is_over()


def wait_for_one(calls: Sequence[PendingCall], until: float | None) -> None:
    """Wait until one of several calls is over, one is late, or a time on the monotonic clock."""
    until = earliest((until, *[call.next_deadline() for call in calls]))
    wait_for_calls(calls, until, lambda: any(call.is_over for call in calls))


def earliest(limits: Iterable[float | None]) -> float | None:
    """The first of several times, or the shortest of several durations; None where none limits."""
    return min([limit for limit in limits if limit is not None], default=None)


def seconds_to(until: float | None) -> float:
    """Seconds to a time on the monotonic clock, at or above 0; infinite without one."""
    return float("inf") if until is None else max(0.0, until - time.monotonic())


async def answer_of(calls: Sequence[PendingCall], result: Callable[[], R]) -> R:
    """Await calls, and read their result in a thread: it may be large, and lie elsewhere.

    A cancelled task ends at once, and the calls run on.

    Args:
        calls: They are over before `result` is called, or the first of them has failed or is late.
        result: Returns the value, or raises.
    """
    from asyncio import to_thread  # half of the import time of this package

    def raised_or_value() -> tuple[R | None, BaseException | None]:
        try:
            return result(), None
        except StopIteration as error:
            return None, no_end(error)  # as PEP 479

    await over(calls)
    value, error = await to_thread(raised_or_value)
    if error is not None:
        raise error
    return value  # type: ignore[return-value]  # without an error there is a value


async def over(calls: Sequence[PendingCall]) -> None:
    """Await that all calls are over, or one has failed or is late."""
    from asyncio import Event, get_running_loop, wait_for  # as above

    loop, answered = get_running_loop(), Event()

    def tell() -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(answered.set)

    for call in calls:
        call.when_over(tell)
    while not (all(call.is_over for call in calls) or any(call.failed() or call.overdue() for call in calls)):
        answered.clear()
        until = earliest([call.next_deadline() for call in calls])
        with suppress(TimeoutError):  # a deadline has passed, which the loop looks at
            await wait_for(answered.wait(), None if until is None else seconds_to(until))
