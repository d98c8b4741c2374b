"""One task on a worker's event loop: it waits for a place, runs, and answers; and the places of each component."""

from __future__ import annotations

import time
from asyncio import CancelledError, Semaphore, to_thread
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from twinkle_remote.errors import CallCancelledError
from twinkle_remote.failures.ends import EndedError
from twinkle_remote.protocol.marks import concurrency_of
from twinkle_remote.running import running_worker
from twinkle_remote.values.rows import PLAIN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from twinkle_remote.errors import TwinkleError
    from twinkle_remote.protocol.failure import Failure
    from twinkle_remote.protocol.messages import Outcome
    from twinkle_remote.worker.thread_state import ThreadState


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
            task.asks_for_place = True
            try:
                await task.places.acquire()
            finally:
                task.asks_for_place = False
                worker = running_worker() if task.shown else None
                if worker is not None:
                    worker.refresh_waits()
            task.has_place = True
        task.outcome.started = time.time()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task.places is not None:
            self._task.has_place = False
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
        state: Torch's state of the thread on which it was started, with what the constructor has set.
        answered: Whether `answer` was called.
        name: Class.method.
        number: Another one for each.
        asks_for_place: It waits for a place.
        has_place: It holds one.
        shown: Others know that it waits for a place.
    """

    outcome: Outcome
    places: Semaphore | None
    work: Callable[[LoopTask], Awaitable[Any]]
    finish: Callable[[Any], None]
    capture: Callable[[BaseException], Failure]
    answer: Callable[[Outcome], object]
    reason: TwinkleError | None = None
    state: ThreadState | None = None
    answered: bool = False
    name: str = ""
    number: int = field(default_factory=count().__next__)
    asks_for_place: bool = False
    has_place: bool = False
    shown: bool = False

    def holds_place_of(self, other: LoopTask) -> bool:
        """Whether it holds a place that another one waits for."""
        return self.has_place and self.places is other.places

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
        except EndedError:
            outcome.ended = True
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
