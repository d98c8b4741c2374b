"""A time limit for reads that Ray does not limit: with the raylet stopped, `ray.get` ignores its timeout."""

from __future__ import annotations

import contextvars
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

R = TypeVar("R")


class TooLateError(Exception):
    """A function did not return in time."""


def within(seconds: float | None, function: Callable[[], R]) -> R:
    """Return what a function returns; a function that is too late goes on in a thread of its own.

    Args:
        seconds: How long it may take; None for no limit, and no thread.
        function: What is called.

    Raises:
        TooLateError: The function did not return in time.
    """
    if seconds is None:
        return function()
    future: Future[R] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # the caller raises it
            future.set_exception(error)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(run,), name="twinkle-read", daemon=True).start()
    try:
        return future.result(seconds)
    except TimeoutError:
        if future.done():
            return future.result()
        raise TooLateError from None
