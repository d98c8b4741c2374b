"""Awaits a result in an event loop: a thread waits for the result, and a cancelled task ends at once."""

from __future__ import annotations

import contextlib
import threading
from contextvars import copy_context
from typing import TYPE_CHECKING, TypeVar

from twinkle_remote.failures.ends import no_end

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable

R = TypeVar("R")
_SLICE_SECONDS = 0.5


def future_of(ends_within: Callable[[float], bool], result: Callable[[], R]) -> Future[R]:
    """A future of the running event loop for a result.

    Args:
        ends_within: Waits for at most the given seconds; returns whether `result` can return without waiting.
        result: Returns the value, or raises.
    """
    from asyncio import get_running_loop  # half of the import time of this package

    loop = get_running_loop()
    future: Future[R] = loop.create_future()

    def resolve(value: R | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)  # type: ignore[arg-type]  # without an error there is a value
        else:
            future.set_exception(no_end(error) if isinstance(error, StopIteration) else error)  # as PEP 479

    def serve() -> None:
        while not ends_within(_SLICE_SECONDS):
            if future.done():  # cancelled: nothing is fetched, and a failure stays unseen
                return
        value, error = None, None
        try:
            value = result() if not future.done() else None
        except BaseException as raised:  # every exception goes to the awaiting task
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(resolve, value, error)

    # A daemon thread, because the end of the loop or of the program waits for the threads of an executor.
    threading.Thread(target=copy_context().run, args=(serve,), name="twinkle-await", daemon=True).start()
    return future
