"""The worker whose task runs here."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from twinkle_remote.protocol.waiting import Wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from twinkle_remote.protocol.component import Component
    from twinkle_remote.protocol.failure import WorkerInfo
    from twinkle_remote.protocol.waiting import WaitedWorker
    from twinkle_remote.worker.loop_tasks import LoopTasks

T = TypeVar("T")


class RunningWorker(Protocol):
    """What the code of a task asks of the worker that runs it.

    Attributes:
        info: Its identity.
        loop: Its event loop.
        waits_for: What the task that has its turn waits for; None if it runs, or if there is none.
    """

    info: WorkerInfo
    loop: LoopTasks
    waits_for: Wait | None

    def set_wait(self, wait: Wait | None) -> None:
        """Take what the task that has its turn waits for; None if it goes on."""

    def holds(self, component: Component) -> bool:
        """Whether this worker holds the component."""

    def call(
        self, component: Component, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a method of a component on this worker directly."""


RUNNING: ContextVar[RunningWorker | None] = ContextVar("twinkle_running_worker", default=None)
_numbers = count()


class TaskTurn(NamedTuple):
    """The turn of a task on its worker: no other task runs there until it ends.

    Attributes:
        worker: The worker.
        name: Class.method.
        thread: Its thread; what other threads do does not hold it up.
    """

    worker: RunningWorker
    name: str
    thread: int


_turn: ContextVar[TaskTurn | None] = ContextVar("twinkle_turn", default=None)


class turn_of:  # noqa: N801 - a context manager that reads as a noun; contextlib doubles its time
    """A block in which a task has the turn of its worker.

    Args:
        worker: The worker.
        name: Class.method.
    """

    __slots__ = ("_token", "_turn")

    def __init__(self, worker: RunningWorker, name: str) -> None:
        self._turn = TaskTurn(worker, name, threading.get_ident())

    def __enter__(self) -> None:
        self._token = _turn.set(self._turn)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _turn.reset(self._token)


def own_turn() -> TaskTurn | None:
    """The turn that this thread's task has, and holds up while it waits; None elsewhere."""
    turn = _turn.get()
    return turn if turn is not None and turn.thread == threading.get_ident() else None


def wait_of(running: str, ways: Iterable[Sequence[WaitedWorker]], *, can_raise: bool = True) -> Wait:
    """A new wait of a task."""
    return Wait(next(_numbers), running, tuple(map(tuple, ways)), can_raise)


def running_worker() -> RunningWorker | None:
    """The worker that runs the current task; None on the driver."""
    return RUNNING.get()


def between_awaits(function: Callable[[], T]) -> T:
    """Run a function between two awaits of the coroutines of the running worker; here, where there are none."""
    worker = RUNNING.get()
    return function() if worker is None else worker.loop.between_awaits(function)
