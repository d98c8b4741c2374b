"""Awaits calls in an event loop: a cancelled task ends at once, and the calls run on."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from twinkle_remote.failures.report import no_end
from twinkle_remote.waiting import earliest, seconds_to

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_remote.call.pending.pending_call import PendingCall

R = TypeVar("R")


async def answer_of(calls: Sequence[PendingCall], result: Callable[[], R]) -> R:
    """Await calls, and read their result in a thread: it may be large, and lie elsewhere.

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

    await _over(calls)
    value, error = await to_thread(raised_or_value)
    if error is not None:
        raise error
    return value  # type: ignore[return-value]  # without an error there is a value


async def _over(calls: Sequence[PendingCall]) -> None:
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
