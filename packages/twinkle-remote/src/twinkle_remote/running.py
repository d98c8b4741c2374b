"""The task that runs here, its worker, and the calls that it has made; and whether there are lazy results."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

from twinkle_remote.errors import CircularCallError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_remote.call.pending import PendingCall
    from twinkle_remote.worker.worker import Worker


ALIVE: set[int] = set()
"""Ids of the lazy results."""


def any_lazy() -> bool:
    """Whether this process has a lazy result."""
    return bool(ALIVE)


T = TypeVar("T")
_MANY = 256


class RunningTask:
    """A task that runs here. It ends with the calls that it has made, but for those that are made ahead of their use.

    It fails with the first of them that failed, unless its method has taken that failure.

    Args:
        worker: Its worker.
        name: Class.method.
        thread: The thread that it holds up while it waits; what its other threads do holds up nobody. 0 for none.
    """

    __slots__ = ("_calls", "name", "thread", "worker")

    def __init__(self, worker: Worker, name: str, thread: int = 0) -> None:
        self.worker, self.name, self.thread = worker, name, thread
        self._calls: list[PendingCall] = []

    def add(self, call: PendingCall) -> None:
        """Take a call that was sent; the task raises its failure, if the method does not."""
        call.handed_on = True
        if len(self._calls) >= _MANY:
            self._calls = [one for one in self._calls if not one.done() or one.unseen()]
        self._calls.append(call)

    def next_left(self) -> PendingCall | None:
        """The first call that is not done, or whose failure nobody has taken; None if the task can end."""
        while self._calls and self._calls[0].done() and not self._calls[0].unseen():
            del self._calls[0]
        return self._calls[0] if self._calls else None

    def wait(self) -> None:
        """Wait until all are done; the time limits of the calls themselves free it.

        Raises:
            TwinkleError: The first failure that nobody has taken.
        """
        while (call := self.next_left()) is not None:
            call.wait()


RUNNING: ContextVar[RunningTask | None] = ContextVar("twinkle_running_task", default=None)
"""The task that runs here; None outside of tasks."""


def held_task() -> RunningTask | None:
    """The `def` task that this thread holds up while it waits; None elsewhere."""
    task = RUNNING.get()
    return task if task is not None and task.thread == threading.get_ident() else None


def refuse_own_rank(calls: Sequence[PendingCall]) -> None:
    """Refuse to wait in a `def` method for calls that it has made itself, and that need its own rank.

    Args:
        calls: What is waited for.

    Raises:
        CircularCallError: A call runs after the method, which waits for it.
    """
    task = held_task()
    if task is None:
        return
    info = task.worker.info
    for call in calls:
        made_here = call.made_in is task and call.group.name == info.group and not call.spec.concurrent
        if made_here and info.rank in [reply.rank for reply in call.pending()]:
            raise CircularCallError(
                f"{task.name} waits for {call.name}, which runs after it on {info.label()}: a worker runs one "
                "`def` method at a time, and a method ends with the calls that it has made. Call the method of the "
                f"object itself, or make the call in an `async def` method\n  called from {call.line}"
            )


def running_worker() -> Worker | None:
    """The worker that runs the current task; None on the driver."""
    task = RUNNING.get()
    return None if task is None else task.worker


def between_awaits(function: Callable[[], T]) -> T:
    """Run a function between two awaits of the coroutines of the running worker; here, where there are none."""
    worker = running_worker()
    return function() if worker is None else worker.loop.between_awaits(function)


def ping(component: object) -> None:
    """Return from a worker, as a call: it is alive, and has the component."""
