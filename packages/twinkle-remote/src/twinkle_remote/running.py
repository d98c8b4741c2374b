"""The worker whose task runs here."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar
from weakref import WeakKeyDictionary

from twinkle_remote.protocol.waiting import Wait

if TYPE_CHECKING:
    from asyncio import Task
    from collections.abc import Callable, Hashable, Iterable, Sequence
    from types import TracebackType

    from twinkle_remote.protocol.component import Component
    from twinkle_remote.protocol.failure import WorkerInfo
    from twinkle_remote.protocol.waiting import WaitedWorker, WorkerWaits

T = TypeVar("T")


class RunningLoop(Protocol):
    """A worker's event loop, as the code of a task needs it."""

    def between_awaits(self, function: Callable[[], T]) -> T:
        """Run a function between two awaits of the worker's coroutines."""

    def runs_here(self) -> bool:
        """Whether the calling thread is that of the event loop."""

    def stack(self, key: Hashable) -> str | None:
        """Where a task runs or waits; None if it has not begun or is done."""


class RunningWorker(Protocol):
    """The worker that runs a task, as the code of the task needs it.

    Attributes:
        info: Its identity.
    """

    info: WorkerInfo

    @property
    def loop(self) -> RunningLoop:
        """Its event loop."""

    @property
    def waits(self) -> WorkerWaits:
        """The waits of its tasks."""

    def set_wait(self, wait: Wait | None, *, holds_loop: bool = False) -> None:
        """Take what the task that has its turn, or holds up its event loop, waits for; None if it goes on."""

    def refresh_waits(self) -> None:
        """Read again what the tasks of its event loop wait for."""

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
        thread: Its thread; what other threads do does not hold it up. 0 for a task of the event loop.
        key: Id of the task on the event loop; empty for a task that has the worker's turn.
    """

    worker: RunningWorker
    name: str
    thread: int
    key: str = ""


def key_text(key: Hashable) -> str:
    """The id of a task of an event loop, as other workers know it."""
    return key if isinstance(key, str) else f"{id(key):x}"


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
    """The turn, or the event loop, that this thread's task holds up while it waits; None elsewhere."""
    turn = _turn.get()
    if turn is None or turn.thread == threading.get_ident():
        return turn
    return turn if turn.key and turn.worker.loop.runs_here() else None


def task_of_loop() -> TaskTurn | None:
    """The task of an event loop that runs here; None elsewhere."""
    turn = _turn.get()
    return turn if turn is not None and turn.key and turn.worker.loop.runs_here() else None


def be_task_of_loop(worker: RunningWorker, name: str, key: Hashable) -> None:
    """The calling context is that of a task of an event loop."""
    _turn.set(TaskTurn(worker, name, 0, key_text(key)))


def wait_of(running: str, ways: Iterable[Sequence[WaitedWorker]], *, can_raise: bool = True) -> Wait:
    """A new wait of a task."""
    return Wait(next(_numbers), running, tuple(map(tuple, ways)), can_raise)


def running_worker() -> RunningWorker | None:
    """The worker that runs the current task; None on the driver."""
    return RUNNING.get()


class AwaitedCalls:
    """Calls of which an asyncio task awaits the first.

    Args:
        ways: Returns the workers of each call that have not answered.

    Attributes:
        number: Another one for each.
        shown: Others know of it.
    """

    def __init__(self, ways: Callable[[], Sequence[tuple[WaitedWorker, ...]]]) -> None:
        self.number = next(_numbers)
        self.ways = ways
        self.shown = False


AWAITED: WeakKeyDictionary[Task[Any], AwaitedCalls] = WeakKeyDictionary()


def between_awaits(function: Callable[[], T]) -> T:
    """Run a function between two awaits of the coroutines of the running worker; here, where there are none."""
    worker = RUNNING.get()
    return function() if worker is None else worker.loop.between_awaits(function)
