"""Awaits a result in an event loop: a thread waits for the result, and a cancelled task ends at once."""

from __future__ import annotations

import contextlib
import threading
from contextvars import copy_context
from typing import TYPE_CHECKING, TypeVar

from twinkle_remote.call.pending.circles import CircleWatch
from twinkle_remote.failures.ends import no_end
from twinkle_remote.running import AWAITED, AwaitedCalls, task_of_loop
from twinkle_remote.sessions.current import running

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable, Sequence

    from twinkle_remote.call.pending.circles import WaitedCall

R = TypeVar("R")
_SLICE_SECONDS = 0.5


async def answer_of(calls: Sequence[WaitedCall], ends_within: Callable[[float], bool], result: Callable[[], R]) -> R:
    """Await a result.

    Args:
        calls: The calls of which the first to end brings it.
        ends_within: Waits for at most the given seconds; returns whether `result` can return without waiting.
        result: Returns the value, or raises.

    Raises:
        CircularCallError: A worker's task awaits it, and it waits for that task.
    """
    turn = task_of_loop()
    if turn is None:
        return await _future_of(ends_within, result, None)
    from asyncio import current_task  # half of the import time of this package

    watch = CircleWatch(calls, running().backend, limited=False, awaiting=turn)
    task, awaited = current_task(), AwaitedCalls(watch.ways)
    assert task is not None
    AWAITED[task] = awaited
    try:
        return await _future_of(ends_within, result, watch)
    finally:
        AWAITED.pop(task, None)
        if awaited.shown:
            turn.worker.refresh_waits()


def _future_of(ends_within: Callable[[float], bool], result: Callable[[], R], circles: CircleWatch | None) -> Future[R]:
    """A future of the running event loop for a result."""
    from asyncio import get_running_loop  # as above

    loop = get_running_loop()
    future: Future[R] = loop.create_future()

    def resolve(value: R | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)  # type: ignore[arg-type]  # without an error there is a value
        else:
            future.set_exception(no_end(error) if isinstance(error, StopIteration) else error)  # as PEP 479

    def wait_until_over() -> bool:
        while not ends_within(_SLICE_SECONDS):
            if future.done():  # cancelled: nothing is fetched, and a failure stays unseen
                return False
            if circles is not None:
                circles.look()
        return not future.done()

    def serve() -> None:
        value, error = None, None
        try:
            value = result() if wait_until_over() else None
        except BaseException as raised:  # every exception goes to the awaiting task
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(resolve, value, error)

    # A daemon thread, because the end of the loop or of the program waits for the threads of an executor.
    threading.Thread(target=copy_context().run, args=(serve,), name="twinkle-await", daemon=True).start()
    return future
