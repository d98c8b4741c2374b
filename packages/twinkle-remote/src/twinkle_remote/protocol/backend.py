"""What a backend is: groups of workers, a store of values, and replies to wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from twinkle_mesh import DeviceGroup, DeviceMesh
    from twinkle_remote.protocol.failure import WorkerInfo
    from twinkle_remote.protocol.messages import Outcome, Task


class Store(Protocol):
    """Where values live between workers; on one process simply the values themselves."""

    def put(self, value: object) -> tuple[object, int] | None:
        """Store a large value once for many readers.

        Returns:
            What stands for it, and the bytes stored; None to send the value along with the task instead.
        """

    def get(
        self, ref: object, start: int | None = None, stop: int | None = None, timeout: float | None = None
    ) -> tuple[Any, int]:
        """A stored value, or rows [start, stop) of it.

        Args:
            ref: What `put` returned, the payload of an outcome, or the value itself.
            start: First row; None for the whole value.
            stop: One past the last row.
            timeout: Seconds that this may take, also where what holds the value does not answer; None for no limit.

        Returns:
            The value, and the bytes that this took from outside of the process.

        Raises:
            StoreTimeoutError: The time is over.
            WorkerDiedError: The value is gone with what held it.
        """

    def keep(self, value: object) -> tuple[object, int]:
        """Keep a method's result for later readers.

        Returns:
            The payload of its outcome, and the bytes it holds.
        """


class Reply(Protocol):
    """The pending answer of one worker; hashable by identity.

    Attributes:
        rank: Rank of the worker.
        sent: Bytes that went to the worker with its task, small arguments among them; 0 where all share a process.
    """

    rank: int
    sent: int

    def done(self) -> bool:
        """Whether the outcome is there, or never will be."""


class InputReplies(list[Reply]):
    """The replies that the hand-overs of one call's tasks are made of.

    Attributes:
        watched: Further replies of the calls that make those: of ranks whose outcomes are not read.
    """

    def __init__(self, replies: Iterable[Reply] = (), watched: Iterable[Reply] = ()) -> None:
        super().__init__(replies)
        self.watched = tuple(watched)


class WorkerGroup(Protocol):
    """The workers of one `DeviceGroup`, in rank order."""

    @property
    def name(self) -> str:
        """Name of the group."""

    @property
    def size(self) -> int:
        """Number of workers."""

    def info(self, rank: int) -> WorkerInfo:
        """Who the worker of a rank is."""

    def submit(self, rank: int, task: Task, inputs: InputReplies) -> Reply:
        """Have one worker run a task after everything that it was given before; returns at once.

        Args:
            rank: Rank in [0, size - 1].
            task: The task. Ranks that share their data are given the same object, one after the other.
            inputs: What the task's hand-overs are made of; waited for before the task begins. The first failure among
                them, or among those that are watched meanwhile, ends the task at once: its worker is free then.
        """

    def stacks(self, ranks: Sequence[int]) -> Mapping[int, str]:
        """Where the given ranks are, as text by rank; ranks that cannot tell are left out."""

    def prepare(self, tasks: Sequence[Task]) -> None:
        """Make sure that all tasks of one call can be sent, before the first one is; by default all of them can.

        Raises:
            DispatchError: One cannot be sent; no rank has received the call.
        """
        return


class Backend(Protocol):
    """Groups of workers, and what is needed to wait for them."""

    @property
    def store(self) -> Store:
        """The store that this process reads and writes."""

    @property
    def start_timeout(self) -> float | None:
        """Seconds that a constructor may take; None, the default, for no limit."""
        return None

    def group(self, name: str) -> WorkerGroup:
        """A group by name.

        Raises:
            PlacementError: There is none of that name; the message lists those that exist.
        """

    def wait(self, replies: Sequence[Reply], timeout: float | None) -> Sequence[Reply]:
        """Wait until at least one reply is done.

        Args:
            replies: At least one.
            timeout: Seconds, 0 to poll; None waits without a limit.

        Returns:
            Those that are done; empty when the time is over.
        """

    def outcome(self, reply: Reply) -> Outcome:
        """The outcome of a reply that is done; a lost worker is an outcome with a failure, never an exception."""

    def after_fork(self) -> bool:
        """Called in a process that was forked from this one: drop what is the parent's, and contact no other process.

        Returns:
            Whether calls can go on there, with its own copies of the components.
        """
        return False

    def close(self) -> None:
        """End every worker and give everything back; safe twice."""


class BackendFactory(Protocol):
    """What an entry point of `twinkle.backends` names: called with the groups and the options of `initialize`."""

    def __call__(self, groups: Sequence[DeviceGroup], *, seed: int, **options: Any) -> Backend:
        """Start the groups; every worker is ready when it returns."""


@runtime_checkable
class InProcessBackend(Protocol):
    """A backend that builds components in the calling process, which is itself one of their ranks.

    Attributes:
        own_group: Name of the group of components that are this process's alone: they have neither group nor mesh.
    """

    own_group: str

    @property
    def rank(self) -> int:
        """Rank of the calling process."""

    def adopt(self, group: str, instance: str, value: object, mesh: DeviceMesh | None) -> bool:
        """Take in a component that was built in this process; False when it cannot be referred to weakly."""
