"""The place of the running code: the driver or a worker, the task that runs here, and the line of the program."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from twinkle_mesh import ask_for_rank, current_rank, launched, use_rank
from twinkle_remote.errors import CircularCallError
from twinkle_remote.protocol.messages import WorkerInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import FrameType, TracebackType

    from twinkle_mesh import DeviceMesh
    from twinkle_remote.call.pending import PendingCall
    from twinkle_remote.worker.worker import Worker


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
    """This process is one worker: code outside its tasks, such as its helper threads, is that worker's too."""
    global _process
    _process = context


ask_for_rank(lambda: current_worker().rank)


def forked_from(parent: int) -> str:
    """The error text for a forked process; says what to use."""
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

    Raises:
        CircularCallError: A call runs after the method, which waits for it.
    """
    task = held_task()
    if task is None:
        return
    info = task.worker.info
    for call in calls:
        made_here = call.made_in is task and call.group.name == info.group and call.call.kind != "beside"
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


_MACHINERY = (
    "twinkle_remote",
    "twinkle_mesh",
    "twinkle_ray",
    "twinkle_data",
    "twinkle_http",
    "twinkle_engines",
    "twinkle",
)
_FOLDERS = tuple(f"{os.sep}{name}{os.sep}" for name in ("twinkle_remote", "twinkle_ray", "twinkle_http"))
_LIBRARY = os.path.dirname(os.__file__) + os.sep
_INSTALLED = f"{os.sep}site-packages{os.sep}"
_INNERMOST = 6  # frames of a stack that are shown
_OUTERMOST = 4


def is_machinery_file(name: str) -> bool:
    """Whether a file belongs to these packages."""
    return any(folder in name for folder in _FOLDERS)


def users_part(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback from the first frame of the program on, where a debugger stops; None if it has none."""
    while trace is not None and is_machinery_file(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def user_stack(frame: FrameType | None) -> str:
    """The two ends of the user's frames of a worker's stack; without any, those of these packages."""
    stack = traceback.extract_stack(frame)
    own = [at for at in stack if not is_machinery_file(at.filename)]
    below = [i for i, at in enumerate(stack) if is_machinery_file(at.filename)]
    inside = [at for at in own if below and stack.index(at) > below[0]]
    if all(at.filename.startswith(_LIBRARY) and _INSTALLED not in at.filename for at in inside):
        inside = []  # these packages wait inside of Python's own modules
    frames = inside or stack
    if (left_out := len(frames) - _OUTERMOST - _INNERMOST) <= 0:
        return "".join(traceback.format_list(frames))
    ends = traceback.format_list(frames[:_OUTERMOST]), traceback.format_list(frames[-_INNERMOST:])
    return "".join([*ends[0], f"  ... {left_out} frames ...\n", *ends[1]])


_line: ContextVar[str] = ContextVar("twinkle_line", default="")


def calls_are_from(line: str) -> None:
    """Let the calls of this thread name a line, because the user's code did not start the thread."""
    _line.set(line)


def named_elsewhere() -> bool:
    """Whether the calls of this thread name a line of a program that goes on elsewhere: a stream's thread, a server."""
    return bool(_line.get())


class called_from:  # noqa: N801 - a context manager that reads as a verb; contextlib doubles its time
    """Run a block for a caller elsewhere, whose line is the driver's line."""

    __slots__ = ("_line", "_token")

    def __init__(self, line: str) -> None:
        self._line = line

    def __enter__(self) -> None:
        self._token = _line.set(self._line)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _line.reset(self._token)


def driver_line() -> str:
    """File and line of the user's call: the innermost frame outside of these packages."""
    if line := _line.get():
        return line
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not _is_machinery(frame.f_globals.get("__name__", "")):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def call_line() -> str:
    """File and line of the user's call, and the worker that makes it."""
    here = current_worker()
    if here.group is None or here.rank is None:
        return driver_line()
    return f"{driver_line()} on {WorkerInfo(here.group, here.rank, here.world_size).label(here.coordinate)}"


@lru_cache(maxsize=1024)
def _is_machinery(module: str) -> bool:
    return module.partition(".")[0] in _MACHINERY
