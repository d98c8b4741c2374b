"""The worker whose task runs here."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinkle_remote.protocol.component import Component
    from twinkle_remote.worker.loop_tasks import LoopTasks

T = TypeVar("T")


class RunningWorker(Protocol):
    """What the code of a task asks of the worker that runs it.

    Attributes:
        loop: Its event loop.
    """

    loop: LoopTasks

    def holds(self, component: Component) -> bool:
        """Whether this worker holds the component."""

    def call(
        self, component: Component, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a method of a component on this worker directly."""


RUNNING: ContextVar[RunningWorker | None] = ContextVar("twinkle_running_worker", default=None)


def running_worker() -> RunningWorker | None:
    """The worker that runs the current task; None on the driver."""
    return RUNNING.get()


def between_awaits(function: Callable[[], T]) -> T:
    """Run a function between two awaits of the coroutines of the running worker; here, where there are none."""
    worker = RUNNING.get()
    return function() if worker is None else worker.loop.between_awaits(function)
