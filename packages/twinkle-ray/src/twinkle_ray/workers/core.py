"""The backend over running groups: the driver and every worker call groups through it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import ray

from twinkle_ray.workers.task_queue import TaskQueue
from twinkle_remote.errors import PlacementError
from twinkle_remote.protocol import Backend

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_ray.objects.object_store import RayStore
    from twinkle_ray.workers.group import RayGroup


class RayGroups(Backend):
    """The backend over groups that already run.

    Args:
        groups: The groups; or, in a worker, a ref of them: it fetches them for its first call.
        store: The store of this process.
    """

    def __init__(self, groups: Sequence[RayGroup] | ray.ObjectRef[list[RayGroup]], store: RayStore) -> None:
        self.store = store
        self._queue = TaskQueue("twinkle-sends")
        self._groups: dict[str, RayGroup] = {}
        self._loading = threading.Lock()
        self._stored: ray.ObjectRef[list[RayGroup]] | None = None
        if isinstance(groups, ray.ObjectRef):
            self._stored = groups
        else:
            self._take(groups)

    def all(self) -> Sequence[RayGroup]:
        """All groups."""
        return tuple(self._loaded().values())

    def replace(self, groups: Sequence[RayGroup] | ray.ObjectRef[list[RayGroup]]) -> None:
        """Replace groups of the same names, or take in that they have other workers.

        Args:
            groups: As for the constructor.
        """
        with self._loading:
            if not isinstance(groups, ray.ObjectRef):
                self._take(groups)
            elif self._groups:
                found: list[RayGroup] = ray.get(groups)
                self._take(found)
            else:
                self._stored = groups

    def _take(self, groups: Sequence[RayGroup]) -> None:
        found = {**self._groups, **{group.name: group for group in groups}}
        labels = {member.id: member.info.label() for one in found.values() for member in one.members}
        for one in found.values():
            one.connect(self._queue, labels)
        self._groups = found

    def _loaded(self) -> Mapping[str, RayGroup]:
        if self._stored is not None:
            with self._loading:
                if self._stored is not None:
                    found: list[RayGroup] = ray.get(self._stored)
                    self._take(found)
                    self._stored = None
        return self._groups

    def group(self, name: str) -> RayGroup:
        """A group by name."""
        groups = self._loaded()
        if name not in groups:
            known = ", ".join(map(repr, groups)) or "none"
            raise PlacementError(f"there is no group {name!r}; initialize was given {known}")
        return groups[name]

    def after_fork(self) -> bool:
        """Leave the connection to the cluster to the parent process."""
        from twinkle_ray.cluster.cluster import leave_to_parent  # few processes fork

        leave_to_parent()
        return False

    def close(self) -> None:
        """Do nothing: the groups belong to the driver's backend."""
