"""The event loop of a worker: a thread of its own that runs coroutines, cancels them, and shows where they wait."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from asyncio import (
    CancelledError,
    Semaphore,
    Task,
    all_tasks,
    current_task,
    get_running_loop,
    new_event_loop,
    run_coroutine_threadsafe,
    set_event_loop,
    wait,
)
from concurrent.futures import wait as wait_for_one
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from twinkle_remote.context import is_machinery_file, user_stack
from twinkle_remote.errors import CallCancelledError, CallTimeoutError
from twinkle_remote.protocol.spec import concurrency_of

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable, Coroutine, Hashable

    from twinkle_remote.errors import TwinkleError
    from twinkle_remote.protocol.messages import Failure, Outcome

T = TypeVar("T")
_KEPT_CANCELS = 4096
_LOOK_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class LoopTask:
    """One task.

    Attributes:
        outcome: Its outcome, which the work fills.
        work: Runs the user's coroutine.
        capture: Makes a failure of an exception.
        answer: Called once with the outcome.
        reason: The error to report if the task is cancelled.
        answered: Whether `answer` was called.
        running: The task of asyncio, once it has begun.
    """

    outcome: Outcome
    work: Callable[[], Coroutine[Any, Any, None]]
    capture: Callable[[BaseException], Failure]
    answer: Callable[[Outcome], object]
    reason: TwinkleError | None = None
    answered: bool = False
    running: Task[None] | None = None

    async def run(self) -> None:
        """Run the task to its end, and answer."""
        try:
            await self.work()
        except CancelledError as error:
            self.end_cancelled(error)
            return
        except BaseException as error:  # every exception becomes an outcome; SystemExit would end the loop
            self.outcome.failure = self.capture(error)
        self._end()

    def end_cancelled(self, error: CancelledError) -> None:
        """Answer that it was cancelled."""
        text = ": ".join(["a task that it awaited was cancelled", *map(str, error.args)])
        reason = self.reason or CallCancelledError(text)
        self.outcome.failure = replace(self.capture(reason), trace=self.capture(error).trace)
        self._end()

    def _end(self) -> None:
        self.outcome.seconds = time.time() - self.outcome.started
        self.answered = True
        self.answer(self.outcome)


class EventLoop:
    """The event loop of one worker and its thread, which begin with the first task, also in a forked process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._starting = threading.Lock()
        self._process = 0
        self._forget()

    def _forget(self) -> None:
        self._loop: AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._places: dict[str, Semaphore] = {}
        self._tasks: dict[Hashable, LoopTask] = {}
        self._early: dict[Hashable, TwinkleError] = {}

    def _here(self) -> AbstractEventLoop | None:
        """The loop; None if it has not begun in this process, which may be a fork of the one where it runs."""
        return self._loop if self._process == os.getpid() else None

    def _started(self) -> AbstractEventLoop:
        with self._starting:
            loop = self._here()
            if loop is None:
                self._forget()
                self._process, self._loop = os.getpid(), (loop := new_event_loop())
                self._thread = threading.Thread(
                    target=_serve, args=(loop,), name=f"{self._name} event loop", daemon=True
                )
                self._thread.start()
            return loop

    def start(self, key: Hashable, task: LoopTask, seconds: float | None) -> None:
        """Run a task while others run, in the caller's context; tasks begin in the order of these calls.

        Args:
            key: Its id, for `cancel` and `stack`.
            task: The task.
            seconds: After so many seconds it is cancelled; None for no limit.
        """
        self._started().call_soon_threadsafe(self._begin, key, task, seconds)

    def places(self, name: str, instance: object) -> Semaphore:
        """The places of a component, as many as its class says, taken in the order in which they are asked for."""
        self._started()
        if name not in self._places:
            self._places[name] = Semaphore(concurrency_of(type(instance)))
        return self._places[name]

    def drop(self, name: str) -> None:
        """Forget the places of a component; calls that wait for them go on."""
        self._places.pop(name, None)

    def _begin(self, key: Hashable, task: LoopTask, seconds: float | None) -> None:
        task.reason = self._early.pop(key, None)
        if task.reason is not None:
            task.end_cancelled(CancelledError())
            return
        loop, late = get_running_loop(), None
        task.running, self._tasks[key] = loop.create_task(task.run()), task
        if seconds is not None:
            error = CallTimeoutError(f"it was cancelled on the worker {seconds:g} s after its begin")
            late = loop.call_later(seconds, self._cancel, key, error)

        def ended(_: Task[None]) -> None:
            self._tasks.pop(key, None)
            if not task.answered:  # it was cancelled before its first step
                task.end_cancelled(CancelledError())
            if late is not None:
                late.cancel()

        task.running.add_done_callback(ended)

    def between_awaits(self, function: Callable[[], T]) -> T:
        """Run a function on the event loop, between two awaits of its tasks, and wait for it; here without a loop.

        Raises:
            RuntimeError: The loop is closed.
        """
        loop, thread = self._here(), self._thread
        if loop is None or thread is None:
            return function()

        async def run() -> T:
            return function()

        future = run_coroutine_threadsafe(run(), loop)
        while not future.done() and thread.is_alive():
            wait_for_one([future], _LOOK_SECONDS)
        if not future.done():
            raise RuntimeError("the event loop has ended")
        return future.result()

    def cancel(self, key: Hashable) -> None:
        """Cancel a task, also one that has not begun; returns at once."""
        reason = CallCancelledError("its caller has cancelled it")
        self._started().call_soon_threadsafe(self._cancel, key, reason)

    def stack(self, key: Hashable) -> str | None:
        """Where a task runs or waits, the innermost frame last; None if it has not begun or is done."""
        found = self._tasks.get(key)
        if found is None or found.running is None or self._thread is None:
            return None
        frames = _waiting_frames(found.running.get_coro())
        if frames:
            own = [frame for frame in frames if not is_machinery_file(frame.filename)]
            return "".join(traceback.format_list(own or frames))
        running = sys._current_frames().get(self._thread.ident or 0)
        return None if running is None else user_stack(running)

    def close(self) -> None:
        """Begin to cancel all tasks; the thread ends after them."""
        loop = self._here()
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._stop, loop)

    def join(self, seconds: float) -> bool:
        """Wait for the thread's end for so many seconds, after `close`; returns whether it has ended."""
        thread = self._thread
        if self._here() is None or thread is None or thread is threading.current_thread():
            return True
        thread.join(seconds)
        return not thread.is_alive()

    def _stop(self, loop: AbstractEventLoop) -> None:
        for key in tuple(self._tasks):
            self._cancel(key, CallCancelledError("the session ended"))
        loop.create_task(self._stop_when_idle(loop))

    async def _stop_when_idle(self, loop: AbstractEventLoop) -> None:
        while self._tasks:
            await wait([one.running for one in self._tasks.values() if one.running], timeout=_LOOK_SECONDS)
        while others := all_tasks() - {current_task()}:  # tasks that a user's coroutine has left
            for task in others:
                task.cancel()
            await wait(others, timeout=_LOOK_SECONDS)
        await loop.shutdown_asyncgens()
        loop.stop()

    def _cancel(self, key: Hashable, reason: TwinkleError) -> None:
        if key in self._tasks:
            task = self._tasks[key]
            if task.reason is None and task.running:  # a second one would interrupt the cleanup after the first
                task.reason = reason
                task.running.cancel()
            return
        self._early[key] = reason
        if len(self._early) > _KEPT_CANCELS:  # of calls that ended before they were cancelled
            del self._early[next(iter(self._early))]


def _serve(loop: AbstractEventLoop) -> None:
    set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


def _waiting_frames(coroutine: Any) -> list[traceback.FrameSummary]:
    """The frames of a coroutine that waits, the outermost first; empty if it runs now."""
    frames: list[traceback.FrameSummary] = []
    while coroutine is not None:
        frame = _first(coroutine, "cr_frame", "gi_frame", "ag_frame")
        following = _first(coroutine, "cr_await", "gi_yieldfrom", "ag_await")
        if frame is not None:
            if following is None and _first(coroutine, "cr_running", "gi_running", "ag_running"):
                return []
            frames += traceback.extract_stack(frame, limit=1)
        coroutine = following
    return frames


def _first(owner: object, *names: str) -> Any:
    return next((found for name in names if (found := getattr(owner, name, None)) is not None), None)
