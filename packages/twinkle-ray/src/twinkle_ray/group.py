"""The workers of each group as the call path sees them: submit a task, wait for answers, read an outcome."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, cast

import ray

from twinkle_ray.failure import to_failure
from twinkle_ray.store import RayStore
from twinkle_ray.wire import outcome_from_wire, task_to_wire
from twinkle_remote.errors import PlacementError
from twinkle_remote.protocol import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_mesh import DeviceMesh
    from twinkle_remote.failure import WorkerInfo
    from twinkle_remote.protocol import Reply, Task


_TOGETHER = 0.01  # seconds in which answers are waited for all at once, which costs one wake-up instead of one each


_WORTH_REMEMBERING = 2048  # bytes


class RayReply:
    """The pending answer of one actor."""

    __slots__ = ("__weakref__", "group", "instance", "outcome", "rank", "ref")

    def __init__(self, group: RayGroup, rank: int, ref: ray.ObjectRef[Any], instance: str) -> None:
        self.group = group
        self.rank = rank
        self.ref = ref
        self.instance = instance
        self.outcome: Outcome | None = None

    def done(self) -> bool:
        """Whether the outcome is there, or never will be."""
        return self.outcome is not None or bool(ray.wait([self.ref], timeout=0)[0])

    def read(self) -> Outcome:
        """The outcome; waits for it."""
        if self.outcome is None:
            try:
                self.outcome = outcome_from_wire(ray.get(self.ref))
            except ray.exceptions.RayError as error:
                self.outcome = self.group.lost(self, error)
        return self.outcome


class RayGroup:
    """The actors of one group.

    Args:
        name: Name of the group.
        actors: In rank order.
        infos: Who they are.
        is_driver: This is the one process that may rely on what the actors remember of it.
    """

    def __init__(
        self, name: str, actors: Sequence[Any], infos: Sequence[WorkerInfo], *, is_driver: bool = False
    ) -> None:
        self._name = name
        self.actors = tuple(actors)
        self.infos = tuple(infos)
        self._is_driver = is_driver
        self._remembered: dict[int, bytes] = {}
        self._meshes: dict[str, DeviceMesh | None] = {}
        self._sent: tuple[weakref.ref[Task], Any] | None = None
        self.labels: Mapping[str, str] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return RayGroup, (self._name, self.actors, self.infos)

    @property
    def name(self) -> str:
        """Name of the group."""
        return self._name

    @property
    def size(self) -> int:
        """Number of workers."""
        return len(self.actors)

    def info(self, rank: int) -> WorkerInfo:
        """Who the worker of a rank is."""
        return self.infos[rank]

    def submit(self, rank: int, task: Task, inputs: Sequence[Reply]) -> RayReply:
        """Send a task; what ranks share is pickled once."""
        if task.kind == "create":
            self._meshes[task.instance] = task.mesh
        refs = [reply.ref for reply in inputs if isinstance(reply, RayReply)]
        assert len(refs) == len(inputs), "replies of another backend"
        return RayReply(self, rank, self._send(rank, self._wire(task), refs), task.instance)

    def _send(self, rank: int, wire: Any, refs: Sequence[ray.ObjectRef[Any]]) -> ray.ObjectRef[Any]:
        actor = self.actors[rank]
        if refs or not self._is_driver or type(wire) is not bytes or len(wire) > _WORTH_REMEMBERING:
            ref = actor.run.remote(wire, *refs)
        elif self._remembered.get(rank) == wire:
            ref = actor.again.remote()
        else:
            self._remembered[rank] = wire
            ref = actor.remember.remote(wire)
        return cast("ray.ObjectRef[Any]", ref)

    def stacks(self, ranks: Sequence[int]) -> Mapping[int, str]:
        """Where the given ranks are."""
        return {}

    def lost(self, reply: RayReply, error: Exception) -> Outcome:
        """The outcome of a rank whose answer is an error of Ray's."""
        mesh = self._meshes.get(reply.instance)
        coordinate = None if mesh is None else mesh.coordinate(reply.rank)
        own = self.actors[reply.rank]._actor_id.hex()
        return Outcome(reply.rank, failure=to_failure(error, self.infos[reply.rank], coordinate, self.labels, own))

    def _wire(self, task: Task) -> Any:
        if self._sent is None or self._sent[0]() is not task:
            wire = task_to_wire(task)
            self._sent = weakref.ref(task, self._forget), wire
        return self._sent[1]

    def _forget(self, task: weakref.ref[Task]) -> None:
        if self._sent is not None and self._sent[0] is task:
            self._sent = None


def _read_together(replies: Sequence[RayReply]) -> None:
    """Read answers that are there with one request; where one of them is an error, each is read on its own later."""
    try:
        wires = ray.get([reply.ref for reply in replies])
    except ray.exceptions.RayError:
        return
    for reply, wire in zip(replies, wires, strict=True):
        reply.outcome = outcome_from_wire(wire)


class RayGroups:
    """A backend over groups that are there already: what a worker calls the others with.

    Args:
        groups: The groups.
    """

    def __init__(self, groups: Sequence[RayGroup]) -> None:
        self._store = RayStore()
        self._groups = {group.name: group for group in groups}
        labels = {
            actor._actor_id.hex(): info.label()
            for group in groups
            for actor, info in zip(group.actors, group.infos, strict=True)
        }
        for group in groups:
            group.labels = labels

    @property
    def store(self) -> RayStore:
        """The store of this process."""
        return self._store

    def group(self, name: str) -> RayGroup:
        """A group by name."""
        if name not in self._groups:
            known = ", ".join(map(repr, self._groups)) or "none"
            raise PlacementError(f"there is no group {name!r}; initialize was given {known}")
        return self._groups[name]

    def wait(self, replies: Sequence[Reply], timeout: float | None) -> Sequence[Reply]:
        """Wait until at least one reply is done."""
        pending = {reply.ref: reply for reply in replies if isinstance(reply, RayReply)}
        refs = list(pending)
        together = _TOGETHER if timeout is None else min(timeout, _TOGETHER)
        ready, _ = ray.wait(refs, num_returns=len(refs), timeout=together)
        if not ready and timeout != together:
            ready, _ = ray.wait(refs, num_returns=1, timeout=None if timeout is None else timeout - together)
        done = [pending[ref] for ref in ready]
        if len(done) > 1:
            _read_together(done)
        return done

    def outcome(self, reply: Reply) -> Outcome:
        """The outcome of a reply that is done."""
        assert isinstance(reply, RayReply)
        return reply.read()

    def close(self) -> None:
        """Nothing: the groups belong to the driver."""
