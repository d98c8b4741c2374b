"""Awaits a result in an event loop: a separate thread waits, and a cancelled task ends without waiting for it."""

from __future__ import annotations

import contextlib
import threading
from contextvars import copy_context
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable

R = TypeVar("R")
_SLICE_SECONDS = 0.5


def future_of(ends_within: Callable[[float], bool], result: Callable[[], R]) -> Future[R]:
    """A future of the running event loop for a result.

    Args:
        ends_within: Waits for at most the given seconds; returns whether `result` would now return at once.
        result: Returns the value, or raises.
    """
    from asyncio import get_running_loop  # half of this package's import time, and few await

    loop = get_running_loop()
    future: Future[R] = loop.create_future()

    def settle(value: R | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)  # type: ignore[arg-type]  # without an error there is a value
        elif isinstance(error, StopIteration):  # a future refuses it, as coroutines do
            future.set_exception(RuntimeError(str(error)))
        else:
            future.set_exception(error)

    def serve() -> None:
        while not ends_within(_SLICE_SECONDS):
            if future.done():  # cancelled, as by wait_for: nothing is fetched, and a failure stays unseen
                return
        value, error = None, None
        try:
            value = result() if not future.done() else None
        except BaseException as raised:  # every exception goes to the awaiting task
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(settle, value, error)

    # Not an executor's thread: the end of the loop, or of the program, would wait for it.
    threading.Thread(target=copy_context().run, args=(serve,), name="twinkle-await", daemon=True).start()
    return future
