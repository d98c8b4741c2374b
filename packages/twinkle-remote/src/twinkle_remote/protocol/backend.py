"""The interface of a backend: groups of workers, a store of values, and replies, which are futures of outcomes."""

from __future__ import annotations

import threading
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from twinkle_remote.protocol.messages import Outcome
from twinkle_remote.rows.columns import picked
from twinkle_remote.rows.cut import PLAIN, size_in_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from twinkle_mesh import DeviceMesh
    from twinkle_remote.protocol.messages import Failure, SessionDefaults, Task, WorkerInfo
    from twinkle_remote.tables.nodes import Columns, Rows
    from twinkle_remote.tables.transfers import TaskTransfer, TransferPlan


class Store(Protocol):
    """Keeps values that move between workers."""

    def put(self, value: object) -> tuple[object, int] | None:
        """Store a large value once for many readers.

        Returns:
            A reference to it, and the bytes stored; None if the value should travel inside the task.
        """

    def get(
        self, ref: object, rows: Rows | None = None, columns: Columns | None = None, timeout: float | None = None
    ) -> tuple[Any, int]:
        """A stored value, or some of its rows and columns.

        Args:
            ref: What `put` returned, the payload of an outcome, or the value itself.
            rows: The numbers of the rows, in any order; None for all.
            columns: The columns, of those that are there, as `rows.columns.selected_where_there` takes them; None for
                all.
            timeout: Seconds that reading may take, also if the value's holder does not answer; None for no limit.

        Returns:
            The value, and the bytes that were fetched from other processes.

        Raises:
            StoreTimeoutError: The time is over.
            WorkerDiedError: The process that held the value has ended.
        """

    def keep(self, value: object, *, eager: bool = False) -> tuple[object, int]:
        """Keep a method's result for later readers.

        Args:
            value: The result.
            eager: The caller reads it at once, so that it may travel with the outcome.

        Returns:
            The payload of the outcome, and its size in bytes.
        """

    def outlives_worker(self, payload: object) -> bool:
        """Whether the payload of an outcome can still be read when the worker that made it has ended."""


class Posted:
    """A value that another process of the program has posted; it is read where it is used, once.

    Attributes:
        take: Reads it; None when it was read, and in the process that has posted it.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._value: object = None
        self.take: Callable[[str], object] | None = None

    def read(self) -> object:
        """The value."""
        if self.take is not None:
            self._value, self.take = self.take(self._key), None
        return self._value


class Memory(Store):
    """A store of one process: a value is its own reference, and nothing moves.

    Args:
        copies: What is read is the reader's own, as for who calls; a worker copies its arguments itself, all together.
    """

    def __init__(self, *, copies: bool = False) -> None:
        self._copies = copies

    def put(self, value: object) -> None:
        """Return nothing: the value itself is sent."""
        return

    def get(
        self, ref: object, rows: Rows | None = None, columns: Columns | None = None, timeout: float | None = None
    ) -> tuple[Any, int]:
        """The value, or some of its rows and columns, which are views."""
        value: Any = ref.read() if isinstance(ref, Posted) else ref
        if rows is not None or columns is not None:
            value = picked(value, rows, columns)
        if self._copies and type(value) not in PLAIN:
            from twinkle_remote.rows.plain import snapshot  # a loop whose results are plain does without

            value = snapshot(value)
        return value, 0

    def outlives_worker(self, payload: object) -> bool:
        """Whether a payload can be read without its worker: workers share this process."""
        return True

    def keep(self, value: object, *, eager: bool = False) -> tuple[object, int]:
        """The value, and its size in bytes if it is known."""
        return value, size_in_bytes(value)


class Reply(Future[Outcome]):
    """The answer of one worker: a future of its outcome.

    It runs from the start. Nobody cancels it, and it has no exception: a lost worker's outcome has a failure.
    Its callbacks run in the thread that answers; they return at once, and do not wait for a worker. Who asks for them
    takes a lock of the interpreter's own alone: Ctrl-C within a lock of Python's own future would leave it taken.

    Args:
        rank: Rank of the worker.
        sent: Bytes that were sent to the worker with its task, including small arguments; 0 within one process.
    """

    def __init__(self, rank: int, sent: int = 0) -> None:
        super().__init__()
        self.rank, self.sent = rank, sent
        self._changing = threading.Lock()
        self._outcome: Outcome | None = None
        self._told: list[Callable[[Future[Outcome]], object]] = []

    def answer(self, outcome: Outcome) -> bool:
        """Set the outcome, in any thread; False for a second one, which is dropped."""
        with self._changing:
            if self._outcome is not None:
                return False
            self._outcome = outcome
            told, self._told = self._told, []
        self.set_result(outcome)
        for tell in told:
            tell(self)
        return True

    def done(self) -> bool:
        """Whether the outcome is there."""
        return self._outcome is not None

    def result(self, timeout: float | None = None) -> Outcome:
        """The outcome; waits for it."""
        return self._outcome or super().result(timeout)

    def add_done_callback(self, fn: Callable[[Future[Outcome]], object]) -> None:
        """Call a function once when the outcome is there, at once if it is; the reply holds it until then."""
        with self._changing:
            if self._outcome is None:
                self._told.append(fn)
                return
        fn(self)


class WorkerGroup(Protocol):
    """The workers of one `DeviceGroup`, in rank order.

    Attributes:
        name: Name of the group.
        size: Number of workers.
        undivided: Its one worker stands for all workers of a component in another session, which divides the calls: a
            task has the whole arguments, and its outcome the collected value. The default is that it does not.
    """

    name: str
    size: int
    undivided: bool = False

    def info(self, rank: int) -> WorkerInfo:
        """Identity of the worker of a rank."""

    def submit(
        self, ranks: Sequence[int], tasks: Sequence[Task], of_rank: Sequence[int], inputs: InputReplies
    ) -> Sequence[Reply]:
        """Queue the tasks of one call, each after the earlier tasks of its rank; returns at once.

        All ranks get their tasks, or none does, whatever Ctrl-C does; ranks get the calls of several threads in one
        order. A task with `on_loop` begins in its turn, too, but the later tasks do not wait for its end
        (`Worker.start`). A task of the kind "beside" should not wait for the earlier tasks; where it does, new weights
        arrive later. It has no inputs.

        Args:
            ranks: The called ranks, in [0, size - 1], ascending.
            tasks: The distinct tasks of the call.
            of_rank: For each called rank, the index of its task.
            inputs: The replies that the tasks read: a task begins when all of them are there. The first failure among
                them, or among the watched ones, ends the task at once and frees its worker (`InputReplies.of_task`).

        Returns:
            One reply for each called rank, in their order.

        Raises:
            DispatchError: A task cannot be sent; no rank has received the call.
        """

    def stacks(self, replies: Sequence[Reply]) -> Mapping[int, str]:
        """Stack traces of tasks, as text by rank: of one of the event loop, where its coroutine waits.

        Ranks without one are left out; by default all are.
        """
        return {}

    def cancel(self, replies: Sequence[Reply]) -> None:
        """Cancel tasks that are pending; returns at once.

        A task of an event loop is cancelled as asyncio does, and one that has not begun does not run. The outcome is a
        failure of the type `CallCancelledError`. By default all run to their end.
        """
        return

    def end_rank(self, rank: int, why: str) -> bool:
        """End the process of a rank that has failed, so that peers which wait for it in a collective get an error.

        Returns whether it was ended, with `why` as the reported cause; not by default: workers may share a process.
        """
        return False


class SessionTool(Protocol):
    """Works on whole components where their session is, such as a weight sync; a client of a served session uses it.

    Its class is an entry point of `twinkle.session_tools`, and is called with the arguments of `session_tool`.
    """

    def call(self, method: str, *args: Any) -> Any:
        """Do what a method that it knows does, with plain values.

        Raises:
            ValueError: It knows no such method.
        """

    def close(self) -> None:
        """Give back what it holds; called once, when its client closes it or is gone."""


class Backend(Protocol):
    """Groups of workers, and their store.

    An entry point of `twinkle.backends` makes it: it takes the groups, `seed=` and the options of `initialize`, starts
    the groups, and returns when all workers are ready.

    Attributes:
        store: The store that this process reads and writes.
        start_timeout: Seconds that a constructor may take; None (the default) for no limit.
        in_process: Components are built in the calling process, which is one of their ranks; not so by default. Such a
            backend has `rank`, `own_group` and `adopt`.
        rank: The rank of the calling process.
        own_group: Name of the group for components that have neither group nor mesh: only this process holds them.
        can_restart: The session asked to restart workers that have ended, with `restart_ranks`; not so by default.
    """

    store: Store
    start_timeout: float | None = None
    in_process: bool = False
    rank: int = 0
    own_group: str = ""
    can_restart: bool = False

    def group(self, name: str) -> WorkerGroup:
        """A group by name.

        Raises:
            PlacementError: No group has that name; the message lists the groups.
        """

    def configure(self, defaults: SessionDefaults) -> None:
        """Give the session's defaults to workers that are processes of their own; called once, before any call.

        Such a worker passes them to `twinkle_remote.backends.support.attach`. By default nothing happens.
        """
        return

    def after_fork(self) -> bool:
        """Drop the parent's connections; called in a forked process, which must not contact other processes.

        Returns:
            Whether the forked process can make calls, on its own copies of the components.
        """
        return False

    def close(self) -> None:
        """End every worker and release all resources; a second call does nothing."""

    def adopt(self, group: str, instance: str, value: object, mesh: DeviceMesh | None) -> bool:
        """Register a component that was built in this process; False if it does not support weak references."""
        return False

    def restart_ranks(self, name: str, ranks: Sequence[int]) -> None:
        """Restart the workers of ranks of a group, which are ended or have ended; construct its components there again.

        Raises:
            TwinkleError: The workers did not start, or a constructor raised.
        """
        return

    def tool(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> SessionTool | None:
        """A tool next to the session, where that is another process's; None (the default) where it is this one's.

        See `session_tool`.
        """
        return None


class InputReplies:
    """The replies from which one call's tasks read their lazy arguments; the same object for all tasks of a call.

    It is true where there are any.

    Args:
        replies: The replies that are read.
        watched: Further replies of the same producer calls, from ranks whose outcomes are not read.
        plan: With the outcomes, it says what each task reads; None without replies.
    """

    def __init__(
        self, replies: Iterable[Reply] = (), watched: Iterable[Reply] = (), plan: TransferPlan | None = None
    ) -> None:
        self.replies, self.watched = tuple(replies), tuple(watched)
        self.plan = plan
        self._planned: Sequence[TaskTransfer] | None = None
        self._left = len(self.replies)
        self._ready: Future[Outcome | None] = Future()
        self._lock = threading.Lock()
        for reply in self.watched:
            reply.add_done_callback(partial(self._arrived, count=0))
        for reply in self.replies:
            reply.add_done_callback(partial(self._arrived, count=1))

    def __bool__(self) -> bool:
        return bool(self.replies)

    def is_ready(self) -> bool:
        """Whether all inputs are there, or one has failed."""
        return self._ready.done()

    def when_ready(self, notify: Callable[[], None]) -> None:
        """Call a function once when all inputs are there or one has failed, in any thread; at once if that is so."""
        self._ready.add_done_callback(lambda _: notify())

    def of_task(self, task: Task) -> tuple[Failure | None, TaskTransfer | None]:
        """Wait for all inputs or for the first failure.

        Args:
            task: One of the call's tasks.

        Returns:
            The failure, and what the task reads, both for the worker; None without inputs.
        """
        if not self.replies:
            return None, None
        failed = self._ready.result()
        if failed is not None:
            assert failed.failure is not None
            return failed.failure.as_upstream(), None
        with self._lock:
            if self._planned is None:
                assert self.plan is not None
                outcomes = [reply.result() for reply in self.replies]
                self._planned = self.plan.transfers(outcomes)
        return None, self._planned[task.place]

    def give_up(self, outcome: Outcome) -> None:
        """End the wait with a failure: the call was cancelled."""
        self._end(outcome)

    def _arrived(self, reply: Future[Outcome], *, count: int) -> None:
        outcome = reply.result()
        if outcome.failure is not None:
            self._end(outcome)
        with self._lock:
            self._left -= count
            done = count > 0 and self._left == 0
        if done:
            self._end(None)

    def _end(self, failed: Outcome | None) -> None:
        with suppress(InvalidStateError):  # a failure came first
            self._ready.set_result(failed)
