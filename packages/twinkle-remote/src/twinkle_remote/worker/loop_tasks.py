"""The event loop of a worker and the places of its components, both made for the first async task."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

from twinkle_remote.errors import CallCancelledError

if TYPE_CHECKING:
    from asyncio import Semaphore
    from collections.abc import Callable, Hashable
    from contextvars import Context

    from twinkle_remote.worker.event_loop import EventLoop, LoopTask, Places

T = TypeVar("T")


class LoopTasks:
    """The tasks of one worker's event loop.

    Args:
        name: Label of the worker.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: EventLoop | None = None
        self._places: Places | None = None

    def start(self, key: Hashable, task: LoopTask, context: Context, limit: float | None) -> None:
        """Run a task while others run; tasks begin in the order of these calls.

        Args:
            key: Its id.
            task: The task.
            context: Context variables that it sees.
            limit: After so many seconds it is cancelled; None for no limit.
        """
        self._running()[0].start(key, task, context, limit)

    def between_awaits(self, function: Callable[[], T]) -> T:
        """Run a function on the event loop, between two awaits of its tasks; here, if there is no loop."""
        loop = self._loop
        return function() if loop is None or not loop.works_here else loop.call(function)

    def runs_here(self) -> bool:
        """Whether the calling thread is that of the event loop."""
        return self._loop is not None and self._loop.runs_here()

    def places(self, name: str, instance: object) -> Semaphore:
        """The places of a component, as many as its class says.

        Args:
            name: Id of the component.
            instance: The component.
        """
        return self._running()[1].of(name, instance)

    def drop(self, name: str) -> None:
        """Forget the places of a component."""
        if self._places is not None:
            self._places.drop(name)

    def cancel(self, key: Hashable, reason: str = "its caller has cancelled it") -> None:
        """Cancel a task, also one that has not begun; returns at once."""
        self._running()[0].cancel(key, CallCancelledError(reason))

    def stack(self, key: Hashable) -> str | None:
        """Where a task runs or waits; None if it has not begun or is done."""
        return None if self._loop is None else self._loop.stack(key)

    def close(self) -> None:
        """Begin to cancel all tasks; the thread ends after them."""
        if self._loop is not None:
            self._loop.close(CallCancelledError("the session ended"))

    def join(self, seconds: float) -> bool:
        """Wait for the thread's end, after `close`; returns whether it has ended."""
        return self._loop is None or self._loop.join(seconds)

    def _running(self) -> tuple[EventLoop, Places]:
        from twinkle_remote.worker.event_loop import (
            EventLoop,  # loads asyncio, half of this package's import time
            Places,
        )

        with self._lock:
            if self._loop is None or self._places is None or not self._loop.works_here:
                self._loop, self._places = EventLoop(f"{self._name} event loop"), Places()
            return self._loop, self._places
