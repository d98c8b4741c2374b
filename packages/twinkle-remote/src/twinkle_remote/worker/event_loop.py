"""The event loop of a worker: a thread of its own that runs tasks, cancels them, and shows where they wait."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from asyncio import CancelledError, Semaphore, all_tasks, current_task, new_event_loop, set_event_loop, to_thread, wait
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_one
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from twinkle_remote.errors import CallCancelledError, CallTimeoutError
from twinkle_remote.failures.frames import is_machinery_file, user_stack
from twinkle_remote.protocol.spec import concurrency_of
from twinkle_remote.rows.cut import PLAIN

if TYPE_CHECKING:
    from asyncio import Task
    from collections.abc import Awaitable, Callable, Coroutine, Hashable
    from contextvars import Context
    from types import TracebackType

    from twinkle_remote.errors import TwinkleError
    from twinkle_remote.protocol.failure import Failure
    from twinkle_remote.protocol.messages import Outcome


class Places:
    """The places of each component of a worker, taken in the order in which they are asked for."""

    def __init__(self) -> None:
        self._places: dict[str, Semaphore] = {}

    def of(self, name: str, instance: object) -> Semaphore:
        """The places of one component.

        Args:
            name: Id of the component.
            instance: The component.
        """
        if name not in self._places:
            self._places[name] = Semaphore(concurrency_of(type(instance)))
        return self._places[name]

    def drop(self, name: str) -> None:
        """Forget a component; calls that wait for its places go on."""
        self._places.pop(name, None)


class _Begun:
    """A block that holds a place; contextlib would write on a user's exception, which may refuse that."""

    __slots__ = ("_task",)

    def __init__(self, task: LoopTask) -> None:
        self._task = task

    async def __aenter__(self) -> None:
        task = self._task
        if task.places is not None:
            await task.places.acquire()
        task.outcome.started = time.time()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task.places is not None:
            self._task.places.release()


@dataclass(slots=True, eq=False)
class LoopTask:
    """One task.

    Attributes:
        outcome: Takes the value or the failure.
        places: The places of its component; None if it needs none.
        work: Runs the user's coroutine inside of the given block, which waits for a place.
        finish: Stores the value in the outcome; it may take long, and runs in a thread.
        capture: Makes a failure of an exception.
        answer: Called once with the outcome.
        reason: The error to report if the task is cancelled.
        answered: Whether `answer` was called.
    """

    outcome: Outcome
    places: Semaphore | None
    work: Callable[[LoopTask], Awaitable[Any]]
    finish: Callable[[Any], None]
    capture: Callable[[BaseException], Failure]
    answer: Callable[[Outcome], object]
    reason: TwinkleError | None = None
    answered: bool = False

    def begun(self) -> _Begun:
        """Wait for a place, and hold it during a block."""
        return _Begun(self)

    async def run(self) -> None:
        """Run the task to its end, and answer."""
        outcome = self.outcome
        try:
            value = await self.work(self)
            if type(value) in PLAIN:
                self.finish(value)
            else:
                await to_thread(self.finish, value)
        except CancelledError as error:
            outcome.failure = self._cancelled(error)
        except BaseException as error:  # every exception becomes an outcome; SystemExit would end the loop
            outcome.failure = self.capture(error)
        outcome.seconds = time.time() - outcome.started
        self.answered = True
        self.answer(outcome)

    def unstarted(self) -> None:
        """Answer that it was cancelled before it began."""
        self.outcome.failure = self._cancelled(CancelledError())
        self.answered = True
        self.answer(self.outcome)

    def _cancelled(self, error: CancelledError) -> Failure:
        text = ": ".join(["a task that it awaited was cancelled", *map(str, error.args)])
        reason = self.reason or CallCancelledError(text)
        return replace(self.capture(reason), trace=self.capture(error).trace)


T = TypeVar("T")
_KEPT_CANCELS = 4096
_LOOK_SECONDS = 1.0


class EventLoop:
    """One thread with an event loop.

    Args:
        name: Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._loop = new_event_loop()
        self._process = os.getpid()
        self._tasks: dict[Hashable, tuple[LoopTask, Task[None], Coroutine[Any, Any, None]]] = {}
        self._early: dict[Hashable, TwinkleError] = {}
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    @property
    def works_here(self) -> bool:
        """Whether this is the process of its thread, and not a process that was forked from it."""
        return self._process == os.getpid()

    def start(self, key: Hashable, task: LoopTask, context: Context, seconds: float | None) -> None:
        """Run a task while others run; tasks begin in the order of these calls.

        Args:
            key: Its id, for `cancel` and `stack`.
            task: The task.
            context: Context variables that it sees.
            seconds: After so many seconds it is cancelled; None for no limit.
        """
        self._loop.call_soon_threadsafe(self._begin, key, task, context, seconds)

    def _begin(self, key: Hashable, task: LoopTask, context: Context, seconds: float | None) -> None:
        task.reason = self._early.pop(key, None)
        if task.reason is not None:
            task.unstarted()
            return
        coroutine = task.run()
        running = self._loop.create_task(coroutine, context=context)
        self._tasks[key] = task, running, coroutine
        late = None
        if seconds is not None:
            error = CallTimeoutError(f"it was cancelled on the worker {seconds:g} s after its begin")
            late = self._loop.call_later(seconds, self._cancel, key, error)

        def ended(_: Task[None]) -> None:
            self._tasks.pop(key, None)
            if not task.answered:  # it was cancelled before its first step
                task.unstarted()
            if late is not None:
                late.cancel()

        running.add_done_callback(ended)

    def runs_here(self) -> bool:
        """Whether the calling thread is that of the loop."""
        return self._thread is threading.current_thread()

    def call(self, function: Callable[[], T]) -> T:
        """Run a function between two awaits of the tasks, and wait for it.

        Raises:
            RuntimeError: The loop is closed.
        """
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        while not future.done() and self._thread.is_alive():
            wait_for_one([future], _LOOK_SECONDS)
        if not future.done():
            raise RuntimeError("the event loop has ended")
        return future.result()

    def cancel(self, key: Hashable, reason: TwinkleError) -> None:
        """Cancel a task, or one that has not begun yet; returns at once.

        Args:
            key: Id of the task.
            reason: The error that it reports.
        """
        self._loop.call_soon_threadsafe(self._cancel, key, reason)

    def stack(self, key: Hashable) -> str | None:
        """Where a task runs or waits, the innermost frame last; None if it has not begun or is done."""
        found = self._tasks.get(key)
        if found is None:
            return None
        frames = _waiting_frames(found[2])
        if frames:
            own = [frame for frame in frames if not is_machinery_file(frame.filename)]
            return "".join(traceback.format_list(own or frames))
        running = sys._current_frames().get(self._thread.ident or 0)
        return None if running is None else user_stack(running)

    def close(self, reason: TwinkleError) -> None:
        """Begin to cancel every task; the thread ends after them."""
        if self.works_here and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop, reason)

    def join(self, seconds: float) -> bool:
        """Wait for the thread's end, after `close`; returns whether it has ended.

        Args:
            seconds: At or above 0.
        """
        if self.works_here and self._thread is not threading.current_thread():
            self._thread.join(seconds)
            return not self._thread.is_alive()
        return True

    def _stop(self, reason: TwinkleError) -> None:
        for key in tuple(self._tasks):
            self._cancel(key, reason)
        self._loop.create_task(self._stop_when_idle())

    async def _stop_when_idle(self) -> None:
        while self._tasks:
            await wait([running for _, running, _ in self._tasks.values()], timeout=_LOOK_SECONDS)
        while others := all_tasks() - {current_task()}:  # tasks that a user's coroutine has left
            for task in others:
                task.cancel()
            await wait(others, timeout=_LOOK_SECONDS)
        await self._loop.shutdown_asyncgens()
        self._loop.stop()

    def _cancel(self, key: Hashable, reason: TwinkleError) -> None:
        if key in self._tasks:
            task, running, _ = self._tasks[key]
            if task.reason is None:  # a second cancellation would interrupt the cleanup after the first one
                task.reason = reason
                running.cancel()
            return
        self._early[key] = reason
        if len(self._early) > _KEPT_CANCELS:  # of calls that ended before they were cancelled
            del self._early[next(iter(self._early))]

    def _serve(self) -> None:
        set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()


_FRAMES = ("cr_frame", "gi_frame", "ag_frame")
_RUNNING = ("cr_running", "gi_running", "ag_running")
_NEXT = ("cr_await", "gi_yieldfrom", "ag_await")


def _waiting_frames(coroutine: Any) -> list[traceback.FrameSummary]:
    """The frames of a coroutine that waits, the outermost first; empty if it runs now."""
    frames: list[traceback.FrameSummary] = []
    while coroutine is not None:
        frame = _first(coroutine, _FRAMES)
        following = _first(coroutine, _NEXT)
        if frame is not None:
            if following is None and _first(coroutine, _RUNNING):
                return []
            frames += traceback.extract_stack(frame, limit=1)
        coroutine = following
    return frames


def _first(owner: object, names: tuple[str, ...]) -> Any:
    return next((found for name in names if (found := getattr(owner, name, None)) is not None), None)
