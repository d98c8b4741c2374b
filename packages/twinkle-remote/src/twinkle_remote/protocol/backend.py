"""The interface of a backend: groups of workers, a store of values, and replies to wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence

    from twinkle_mesh import DeviceGroup, DeviceMesh
    from twinkle_remote.protocol.defaults import SessionDefaults
    from twinkle_remote.protocol.failure import WorkerInfo
    from twinkle_remote.protocol.handed import HandOverPlan
    from twinkle_remote.protocol.messages import Outcome, Task
    from twinkle_remote.protocol.tables import Columns, Rows
    from twinkle_remote.protocol.waiting import WorkerWaits


class Store(Protocol):
    """Keeps values that move between workers; within one process it holds references."""

    def put(self, value: object) -> tuple[object, int] | None:
        """Store a large value once for many readers.

        Returns:
            A reference to it, and the bytes stored; None if the value should travel inside the task.
        """

    def get(
        self, ref: object, start: int | None = None, stop: int | None = None, timeout: float | None = None
    ) -> tuple[Any, int]:
        """A stored value, or rows [start, stop) of it.

        Args:
            ref: What `put` returned, the payload of an outcome, or the value itself.
            start: First row; None for the whole value.
            stop: One past the last row.
            timeout: Seconds that reading may take, also if the value's holder does not answer; None for no limit.

        Returns:
            The value, and the bytes that were fetched from other processes; as `values.ColumnBytes` where the store
            knows those of each column. Otherwise the sizes of the value's columns say it.

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


@runtime_checkable
class PickingStore(Protocol):
    """A store that can read rows by their numbers, and some columns; other stores read ranges with all columns."""

    def pick(
        self, ref: object, rows: Rows | None, columns: Columns | None, timeout: float | None = None
    ) -> tuple[Any, int]:
        """Rows of a stored value, and the bytes that were fetched from other processes; see `Store.get`.

        Args:
            ref: As for `Store.get`.
            rows: Their numbers; None for all.
            columns: The columns to read, as `values.selected_where_there` takes them; None for all. A value that lacks
                one of them is returned with all its columns.
            timeout: Seconds that reading may take.
        """


@runtime_checkable
class AdjoiningStore(Protocol):
    """A store that can read pieces of several values as one value without joining copies of them."""

    def adjoined(
        self, pieces: Sequence[tuple[object, int | None, int | None]], timeout: float | None = None
    ) -> tuple[Any, int] | None:
        """The rows of several stored values as one value, as `join` makes it, and the bytes that were fetched.

        Args:
            pieces: At least two: what `Store.get` takes of each.
            timeout: As for `Store.get`.

        Returns:
            None where the values are of types, or lie in places, of which it cannot be done.
        """


class Reply(Protocol):
    """The pending answer of one worker; hashable by identity.

    Attributes:
        rank: Rank of the worker.
        sent: Bytes that were sent to the worker with its task, including small arguments; 0 within one process.
    """

    rank: int
    sent: int

    def done(self) -> bool:
        """Whether the outcome has arrived, or can no longer arrive."""


class InputReplies(list[Reply]):
    """The replies from which one call's tasks read their lazy arguments; the same object for all tasks of a call.

    Attributes:
        watched: Further replies of the same producer calls, from ranks whose outcomes are not read.
        plan: With the outcomes, it says what each task reads. A backend may plan once for all tasks of the call and
            give each worker its own part; otherwise each worker plans from all outcomes.
        shared: What a backend makes once for all tasks of the call; None at first.
    """

    def __init__(
        self, replies: Iterable[Reply] = (), watched: Iterable[Reply] = (), plan: HandOverPlan | None = None
    ) -> None:
        super().__init__(replies)
        self.watched = tuple(watched)
        self.plan = plan
        self.shared: Any = None


class WorkerGroup(Protocol):
    """The workers of one `DeviceGroup`, in rank order.

    Attributes:
        name: Name of the group.
        size: Number of workers.
        takes_unchecked: `prepare` refuses tasks with `unchecked` whose lists hold other than plain values, so that its
            caller need not look through them; the default is that it does not.
    """

    name: str
    size: int
    takes_unchecked: bool = False

    def info(self, rank: int) -> WorkerInfo:
        """Identity of the worker of a rank."""

    def submit(self, rank: int, task: Task, inputs: InputReplies) -> Reply:
        """Queue a task on one worker, after its earlier tasks; returns at once.

        A task with `on_loop` begins in its turn, too, but the later tasks do not wait for its end (`Worker.start`).
        A task with `concurrent` should not wait for the earlier tasks (`open_concurrent`); where it does, new weights
        arrive later. It has no inputs.

        Args:
            rank: Rank in [0, size - 1].
            task: The task. Ranks that share their data get the same object, one after the other.
            inputs: Replies that the task reads; the task begins when all of them are done. The first failure among
                them, or among the watched ones, ends the task at once and frees its worker.
        """

    def submit_all(
        self, ranks: Sequence[int], tasks: Sequence[Task], of_rank: Sequence[int], inputs: InputReplies
    ) -> Sequence[Reply]:
        """Queue the tasks of one call, as `submit` does for each rank, which is the default.

        A backend may send one message to several ranks. Each rank gets its tasks in the order of these calls.

        Args:
            ranks: The called ranks, ascending.
            tasks: The distinct tasks of the call.
            of_rank: For each called rank, the index of its task.
            inputs: As for `submit`, for each task.

        Returns:
            One reply for each called rank, in their order.
        """
        return [self.submit(rank, tasks[index], inputs) for rank, index in zip(ranks, of_rank, strict=True)]

    def open_concurrent(self, ranks: Sequence[int]) -> None:
        """Have workers run tasks with `concurrent` while others run, from now on; the default does nothing."""
        return

    def stacks(self, ranks: Sequence[int]) -> Mapping[int, str]:
        """Stack traces of the given ranks, as text by rank; ranks without one are left out."""

    def stacks_of(self, replies: Sequence[Reply]) -> Mapping[int, str]:
        """Stack traces of pending tasks, as text by rank: of a task of the event loop, where its coroutine waits.

        The default shows the workers' stacks.
        """
        return self.stacks([reply.rank for reply in replies])

    def loop_keys(self, replies: Sequence[Reply]) -> Sequence[str | None]:
        """The keys by which `waits` names tasks of event loops; empty for other tasks, and None where none is known.

        The default knows none.
        """
        return [None] * len(replies)

    def waits(self, ranks: Sequence[int]) -> Mapping[int, WorkerWaits]:
        """The waits of the tasks of ranks, by rank; ranks without known waits are left out.

        A task that waits long calls it from time to time, and it answers also while a worker is busy. By default
        nothing is known, and calls that wait for each other in a circle wait for ever.
        """
        return {}

    def cancel(self, replies: Sequence[Reply]) -> None:
        """Cancel those tasks of event loops that are pending, as asyncio does; returns at once.

        The default cancels nothing: such tasks then run to their end, and the end of a generator waits for a pending
        item.
        """
        return

    def end_ranks(self, ranks: Sequence[int], why: str) -> Sequence[int]:
        """End the processes of ranks, so that peers which wait for them in a collective get an error.

        Args:
            ranks: Ranks that have failed.
            why: The reported cause of their death.

        Returns:
            The ranks that were ended; none by default, as for workers that share a process.
        """
        return ()

    def withdraw(self, replies: Sequence[Reply]) -> None:
        """`cancel`, and also other tasks that have not begun, which then do not run; returns at once.

        The outcome of such a task is a failure of the type `CallCancelledError`. By default they run.
        """
        self.cancel(replies)

    def prepare(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """The tasks of one call as they are sent, before the first one is sent; the default changes nothing.

        Raises:
            DispatchError: A task cannot be sent; no rank has received the call.
            UncheckedError: A task with `unchecked` holds other than plain values; likewise.
        """
        return tasks


class Backend(Protocol):
    """Groups of workers, their store, and how to wait for replies.

    Attributes:
        store: The store that this process reads and writes.
        start_timeout: Seconds that a constructor may take; None (the default) for no limit.
    """

    store: Store
    start_timeout: float | None = None

    def group(self, name: str) -> WorkerGroup:
        """A group by name.

        Raises:
            PlacementError: No group has that name; the message lists the groups.
        """

    def wait(self, replies: Sequence[Reply], timeout: float | None) -> Sequence[Reply]:
        """Wait until at least one reply is done.

        Args:
            replies: At least one.
            timeout: Seconds, 0 to poll; None waits without a limit.

        Returns:
            The replies that are done; empty when the time is over.
        """

    def when_done(self, reply: Reply, notify: Callable[[], None]) -> bool:
        """Call a function once when a reply is done, in any thread; call it at once if the reply is already done.

        The function returns at once and does not raise.

        Returns:
            Whether it will be called; the default is False, and then the caller uses `wait`.
        """
        return False

    def outcome(self, reply: Reply) -> Outcome:
        """The outcome of a reply that is done; a lost worker gives an outcome with a failure, not an exception."""

    def configure(self, defaults: SessionDefaults) -> None:
        """Give the session's defaults to workers that are processes of their own; called once, before any call.

        Such a worker passes them to `twinkle_remote.backends.support.attach`. By default nothing happens.
        """
        return

    def attached(self) -> Sequence[WorkerGroup]:
        """Groups whose workers were attached; at the end of a session, each worker is asked for its own calls.

        The default is no group: calls of workers in the driver's process are known there.
        """
        return ()

    def after_fork(self) -> bool:
        """Drop the parent's connections; called in a forked process, which must not contact other processes.

        Returns:
            Whether the forked process can make calls, on its own copies of the components.
        """
        return False

    def close(self) -> None:
        """End every worker and release all resources; a second call does nothing."""


class BackendFactory(Protocol):
    """An entry point of `twinkle.backends`; called with the groups and the options of `initialize`."""

    def __call__(self, groups: Sequence[DeviceGroup], *, seed: int, **options: Any) -> Backend:
        """Start the groups; all workers are ready when it returns."""


@runtime_checkable
class RestartingBackend(Protocol):
    """A backend that can restart workers that have ended."""

    @property
    def can_restart(self) -> bool:
        """Whether this session asked for it."""

    def restart_ranks(self, name: str, ranks: Sequence[int]) -> None:
        """Restart the workers of some ranks of a group, and construct the group's components on them again.

        Args:
            name: Name of the group.
            ranks: Ranks whose workers are ended, or have ended.

        Raises:
            TwinkleError: The workers did not start, or a constructor raised.
        """


@runtime_checkable
class ReportingBackend(Protocol):
    """A backend whose workers are processes that report the metrics of their own calls."""

    def records_of_workers(self, since: float, busy: Collection[tuple[str, int]]) -> Mapping[Hashable, Sequence[Any]]:
        """Ask all workers at once; returns within a few seconds.

        A worker answers with `twinkle_remote.backends.support.report_records`.

        Args:
            since: Time from which on calls are reported, in seconds of the wall clock.
            busy: Group and rank of workers that may run a method; they are not waited for.

        Returns:
            The `CallRecord`s of each worker process, the oldest first; workers that have not answered are left out,
            and a later call has what they answer.
        """


@runtime_checkable
class MemoryQueueBackend(Protocol):
    """A backend whose workers are threads of this process, each with a queue of tasks.

    Attributes:
        queues_in_memory: `WorkerGroup.submit`, `Backend.outcome` and the store touch this process's memory alone: they
            neither wait nor run a task, so that an event loop may call them.
    """

    queues_in_memory: bool


@runtime_checkable
class InProcessBackend(Protocol):
    """A backend that builds components in the calling process, which is one of their ranks.

    Attributes:
        own_group: Name of the group for components that have neither group nor mesh: only this process holds them.
    """

    own_group: str

    @property
    def rank(self) -> int:
        """Rank of the calling process."""

    def adopt(self, group: str, instance: str, value: object, mesh: DeviceMesh | None) -> bool:
        """Register a component that was built in this process; False if it does not support weak references."""
