"""The backend in a worker: most workers call no group, so the groups are fetched, and loaded, for the first call."""

from __future__ import annotations

import threading
from concurrent import futures
from typing import TYPE_CHECKING, Any

from twinkle_ray.cluster.places import HEAD
from twinkle_remote.errors import WorkerDiedError
from twinkle_remote.protocol import Backend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import ray

    from twinkle_ray.objects.object_store import RayStore
    from twinkle_ray.workers.group import RayGroup
    from twinkle_ray.workers.groups import RayGroups
    from twinkle_remote.protocol import Outcome, Reply

_LOOK_SECONDS = 1.0


class WorkerBackend(Backend):
    """The backend of a worker, by which it calls the groups of the session.

    Args:
        groups: What the driver has stored: a list of all groups.
        store: The store of this worker.
        agent: The agent of this node; None where there is one node.
    """

    def __init__(self, groups: ray.ObjectRef[list[RayGroup]], store: RayStore, agent: Any) -> None:
        self.stored = groups
        self.store, self._agent = store, agent
        self._loading = threading.Lock()
        self._loaded: RayGroups | None = None

    def replace(self, groups: ray.ObjectRef[list[RayGroup]], agent: Any) -> None:
        """Take in that a group has other workers.

        Args:
            groups: As for the constructor.
            agent: As for the constructor.
        """
        with self._loading:
            self.stored, self._agent = groups, agent
            loaded = self._loaded
        if loaded is not None:
            if agent is not None:
                loaded.take_agent(agent, self.store.lost_nodes)
            for group in self._fetched(groups):
                loaded.replace(group)

    def _groups(self) -> RayGroups:
        if self._loaded is None:
            with self._loading:
                if self._loaded is None:
                    self._loaded = self._load()
        return self._loaded

    def _load(self) -> RayGroups:
        from twinkle_ray.workers.groups import RayGroups  # a worker that calls nobody does not load it

        return RayGroups(self._fetched(self.stored), self.store, {}, self.store.lost_nodes, self._agent)

    def _fetched(self, groups: ray.ObjectRef[list[RayGroup]]) -> list[RayGroup]:
        """The groups that the driver has stored, unless its node is lost.

        Raises:
            WorkerDiedError: It is.
        """
        known = self.store.lost_nodes
        coming = groups.future()  # a thread that Ray never answers would end this process when it leaves Ray
        while not futures.wait([coming], _LOOK_SECONDS).done:
            if known is not None and known.any_lost() and (why := known.lost(HEAD)) is not None:
                raise WorkerDiedError(f"the groups of the session cannot be read: {why}")
        found: list[RayGroup] = coming.result()
        return found

    def group(self, name: str) -> RayGroup:
        """A group by name."""
        return self._groups().group(name)

    def wait(self, replies: Sequence[Reply], timeout: float | None) -> Sequence[Reply]:
        """Wait until at least one reply is done."""
        return self._groups().wait(replies, timeout)

    def when_done(self, reply: Reply, notify: Callable[[], None]) -> bool:
        """Call a function when a reply is done, in a thread of Ray."""
        return self._groups().when_done(reply, notify)

    def outcome(self, reply: Reply) -> Outcome:
        """The outcome of a reply that is done."""
        return self._groups().outcome(reply)

    def attached(self) -> Sequence[RayGroup]:
        """All groups: the driver asks them for their calls."""
        return self._groups().attached()

    def after_fork(self) -> bool:
        """Leave the connection to the cluster to the parent process."""
        from twinkle_ray.cluster.forks import leave_to_parent  # few workers fork

        leave_to_parent()
        return False

    def close(self) -> None:
        """End the input waiter; the groups belong to the driver."""
        if self._loaded is not None:
            self._loaded.close()
