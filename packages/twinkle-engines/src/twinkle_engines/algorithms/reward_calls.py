"""Calls of reward functions: plain ones where no event loop runs, async ones at the same time, all by a deadline."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import time
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class RewardCall(NamedTuple):
    """A call of a function.

    Attributes:
        name: The function's.
        function: With its arguments.
        is_async: Whether it is a coroutine function.
    """

    name: str
    function: Callable[[], Any]
    is_async: bool


def run_calls(calls: Sequence[RewardCall], timeout: float | None) -> list[Any]:
    """Run some calls; returns their results.

    Async ones run at the same time in a thread of their own; plain ones meanwhile one after the other in this thread,
    or in others where an event loop runs in this one or a timeout is given. All have this thread's context, by which
    `current_worker` and handles know the worker.

    Args:
        calls: The calls.
        timeout: Seconds for all together; None for any time.

    Raises:
        Exception: What a function raises, with a note that names the function.
        TimeoutError: A function takes longer; it is named.
    """
    end = None if timeout is None else time.monotonic() + timeout
    apart = timeout is not None or _in_event_loop()
    found: dict[int, Any] = {}
    at_once = [i for i, call in enumerate(calls) if call.is_async]
    loop = _Concurrent([calls[i] for i in at_once]) if at_once else None
    for i, call in enumerate(calls):
        if not call.is_async:
            found[i] = _Concurrent([call]).results(end, timeout)[0] if apart else _called(call)
    if loop is not None:
        found |= zip(at_once, loop.results(end, timeout), strict=True)
    for i, call in enumerate(calls):
        if inspect.isawaitable(found[i]):  # of a plain function that returns a coroutine
            again = call._replace(function=partial(_itself, found[i]), is_async=True)
            found[i] = _Concurrent([again]).results(end, timeout)[0]
    return [found[i] for i in range(len(calls))]


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _itself(value: Any) -> Any:
    return value


class _Concurrent:
    """Calls at work in a thread of their own, which no end of the process waits for: one plain one, or async ones.

    Args:
        calls: At least one.
    """

    def __init__(self, calls: Sequence[RewardCall]) -> None:
        self._calls = calls
        self._results: dict[int, Any] = {}
        self._failure: BaseException | None = None
        context = contextvars.copy_context()
        self._thread = Thread(target=context.run, args=(self._run,), name=f"reward {calls[0].name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            if self._calls[0].is_async:
                asyncio.run(self._together())
            else:
                self._results[0] = _called(self._calls[0])
        except BaseException as error:
            self._failure = error

    async def _together(self) -> None:
        async def one(i: int, call: RewardCall) -> None:
            self._results[i] = await _awaited(call)

        await asyncio.gather(*[one(i, call) for i, call in enumerate(self._calls)])

    def results(self, end: float | None, timeout: float | None) -> list[Any]:
        """Return the results of all calls.

        Args:
            end: When the caller gives up, by `time.monotonic`; None waits for ever.
            timeout: The same as the caller said it, for the error.
        """
        self._thread.join(None if end is None else max(end - time.monotonic(), 0.0))
        if self._failure is not None:
            raise self._failure
        if self._thread.is_alive():
            late = ", ".join(call.name for i, call in enumerate(self._calls) if i not in self._results)
            raise TimeoutError(
                f"the reward function {late} has taken longer than timeout={timeout} seconds; use a longer timeout=, "
                "or a function that gives up by itself and returns None"
            )
        return [self._results[i] for i in range(len(self._calls))]


async def _awaited(call: RewardCall) -> Any:
    try:
        return await call.function()
    except Exception as error:
        raise _named(call, error)  # noqa: B904  the same error


def _called(call: RewardCall) -> Any:
    try:
        return call.function()
    except Exception as error:
        raise _named(call, error)  # noqa: B904  the same error


def _named(call: RewardCall, error: Exception) -> Exception:
    with suppress(Exception):  # an exception of one's own may refuse it
        error.add_note(f"raised by the reward function {call.name}")
    return error
