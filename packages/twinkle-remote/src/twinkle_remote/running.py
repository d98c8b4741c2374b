"""The worker whose task runs here, its turn, the calls that it has made, and whether there are lazy results."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

from twinkle_remote.errors import CircularCallError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from twinkle_remote.call.pending.pending_call import PendingCall
    from twinkle_remote.worker.worker import Worker


ALIVE: set[int] = set()
"""Ids of the lazy results."""


def any_lazy() -> bool:
    """Whether this process has a lazy result."""
    return bool(ALIVE)


T = TypeVar("T")

RUNNING: ContextVar[Worker | None] = ContextVar("twinkle_running_worker", default=None)


class turn_of:  # noqa: N801 - a context manager that reads as a noun; contextlib doubles its time
    """A block in which a `def` task has the turn of its worker: no other one runs there until it ends.

    Args:
        worker: The worker.
        name: Class.method.

    Attributes:
        worker: As given.
        name: As given.
        thread: Its thread; what other threads do does not hold it up.
    """

    __slots__ = ("_token", "name", "thread", "worker")

    def __init__(self, worker: Worker, name: str) -> None:
        self.worker, self.name, self.thread = worker, name, threading.get_ident()

    def __enter__(self) -> None:
        self._token = _turn.set(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _turn.reset(self._token)


_turn: ContextVar[turn_of | None] = ContextVar("twinkle_turn", default=None)


def own_turn() -> turn_of | None:
    """The turn that this thread's task holds up while it waits; None elsewhere."""
    turn = _turn.get()
    return turn if turn is not None and turn.thread == threading.get_ident() else None


def refuse_own_rank(calls: Sequence[PendingCall]) -> None:
    """Refuse to wait in a `def` method for calls that it has made itself, and that need its own rank.

    Args:
        calls: What is waited for.

    Raises:
        CircularCallError: A call runs after the method, which waits for it.
    """
    turn = own_turn()
    if turn is None:
        return
    info = turn.worker.info
    for call in calls:
        made_here = call.made_in is turn and call.group_name == info.group and not call.spec.concurrent
        if made_here and info.rank in [reply.rank for reply in call.pending()]:
            raise CircularCallError(
                f"{turn.name} waits for {call.name}, which runs after it on {info.label()}: a worker runs one "
                "`def` method at a time, and a method ends with the calls that it has made. Call the method of the "
                f"object itself, or make the call in an `async def` method\n  called from {call.line}"
            )


class TaskCalls:
    """The calls that one task has made, but for those that are made ahead of their use: the task ends with them.

    It fails with the first of them that failed, unless its method has taken that failure.
    """

    __slots__ = ("_calls",)

    def __init__(self) -> None:
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


_MANY = 256
CALLS: ContextVar[TaskCalls | None] = ContextVar("twinkle_task_calls", default=None)
"""The calls of the task that runs here; None outside of tasks."""


def running_worker() -> Worker | None:
    """The worker that runs the current task; None on the driver."""
    return RUNNING.get()


def between_awaits(function: Callable[[], T]) -> T:
    """Run a function between two awaits of the coroutines of the running worker; here, where there are none."""
    worker = RUNNING.get()
    return function() if worker is None else worker.loop.between_awaits(function)
