"""The place of the running code: the driver, or a worker of a group; and its place among those that run the same."""

from __future__ import annotations

import os
import sys
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from twinkle_mesh import ask_for_rank, current_rank, launched, use_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from twinkle_mesh import DeviceMesh


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """The place of the running code.

    Attributes:
        group: Name of the worker's group; None on the driver.
        rank: Rank in [0, world_size - 1]; None on the driver.
        world_size: Number of workers of the group; 1 on the driver.
        mesh: Mesh of the component whose method is running; None without one.
        alone: Whether this worker alone runs the method, as `execute="first"` says.
    """

    group: str | None = None
    rank: int | None = None
    world_size: int = 1
    mesh: DeviceMesh | None = None
    alone: bool = False

    @property
    def coordinate(self) -> Mapping[str, int]:
        """Coordinate of this rank on the component's mesh, by dim name; empty without a mesh or on the driver."""
        if self.mesh is None or self.rank is None or self.rank not in self.mesh:
            return {}
        return self.mesh.coordinate(self.rank)


_DRIVER = WorkerContext()
_current: ContextVar[WorkerContext | None] = ContextVar("twinkle_worker", default=None)
_process: Callable[[], WorkerContext] | None = None  # where this process is one worker


def current_worker() -> WorkerContext:
    """The place of the caller; on the driver the rank is None.

    In a worker process every thread is that worker. Where ranks are threads of this process, a thread that a method
    starts by itself counts as the driver's, unless it is started with `contextvars.copy_context().run`, as
    `asyncio.to_thread` does.
    """
    return _current.get() or (_DRIVER if _process is None else _process())


def be_worker(context: Callable[[], WorkerContext]) -> None:
    """This process is one worker: code outside its tasks, such as its helper threads, is that worker's too.

    Args:
        context: Returns its place.
    """
    global _process
    _process = context


ask_for_rank(lambda: current_worker().rank)


def forked_from(parent: int) -> str:
    """The error text for a forked process; says what to use.

    Args:
        parent: Process id of the owner of the session.
    """
    return (
        f"process {os.getpid()} was forked from process {parent}, whose session works in that process alone: make the "
        'calls there and hand over their values, or start this process by multiprocessing.get_context("spawn")'
    )


def in_event_loop() -> bool:
    """Whether an event loop runs in the calling thread."""
    if "asyncio" not in sys.modules:
        return False
    from asyncio import get_running_loop  # half of this package's import time

    try:
        get_running_loop()
    except RuntimeError:
        return False
    return True


class working_as:  # noqa: N801 - a context manager that reads as a verb; contextlib doubles its time, once for each call
    """Run a block as the given worker, once; every backend does this around a user's method."""

    __slots__ = ("_context", "_rank", "_token")

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._rank = use_rank(context.rank)

    def __enter__(self) -> None:
        self._token = _current.set(self._context)
        self._rank.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rank.__exit__(kind, error, trace)
        _current.reset(self._token)


class Place(NamedTuple):
    """The place of the running code.

    Attributes:
        rank: Its rank, at least 0; 0 if only one process runs the program.
        world_size: Number of processes or workers that run the same code, at least 1; None if only a rank is known, as
            inside `use_rank`.
        worker: The worker that runs the code; None outside workers.
        by: The source of these numbers outside workers, for messages; empty if only one process runs the program.
    """

    rank: int = 0
    world_size: int | None = 1
    worker: WorkerContext | None = None
    by: str = ""

    @property
    def alone(self) -> bool:
        """Whether no other process or worker runs the same code."""
        return self.world_size == 1 or (self.worker is not None and self.worker.alone)


def current_place() -> Place:
    """The place of the running code: as a worker, in torch's default process group, or by RANK and WORLD_SIZE.

    Raises:
        ValueError: The process group and the variables disagree, or a variable is no rank or size.
    """
    worker = current_worker()
    if worker.rank is not None:
        return Place(worker.rank, worker.world_size, worker)
    rank = current_rank()
    if rank is not None:
        return Place(rank, None, None, "use_rank")
    process = launched()
    return Place() if process is None else Place(process.rank, process.world_size, None, process.by)
