"""The groups of the server's session, as the client sees them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from twinkle_remote.errors import AlreadyInitializedError, DispatchError
from twinkle_remote.protocol import WorkerGroup, WorkerInfo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_mesh import DeviceGroup
    from twinkle_remote.protocol import InputReplies, Reply, Task


class ServedGroup(WorkerGroup):
    """A group of the server's session."""

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size = name, size
        self._restarts: Counter[int] = Counter()

    def restarted(self, ranks: Sequence[int]) -> None:
        """Record that the workers of these ranks were restarted."""
        self._restarts.update(ranks)

    def info(self, rank: int) -> WorkerInfo:
        """Identity of the worker of a rank, as far as it is known here; a restarted worker has another number."""
        return WorkerInfo(self.name, rank, self.size, pid=-self._restarts[rank])

    def submit(self, rank: int, task: Task, inputs: InputReplies) -> Reply:
        """Not used: calls go undivided."""
        raise DispatchError(f"{task.name}: a call over HTTP goes undivided")

    def stacks(self, ranks: Sequence[int]) -> Mapping[int, str]:
        """No stacks: the server puts them into its errors."""
        return {}


def check_groups(wanted: Sequence[DeviceGroup], described: Sequence[Mapping[str, Any]]) -> None:
    """Check that the groups of the program are the server's.

    Raises:
        AlreadyInitializedError: They differ; the message shows how.
    """
    fields = ("name", "ranks", "device_type", "visible_devices", "gpus_per_worker", "nodes")
    have = {one["name"]: {field: one.get(field) for field in fields} for one in described}
    for group in wanted:
        own = {field: getattr(group, field) for field in fields}
        there = have.get(group.name)
        if there is None:
            raise AlreadyInitializedError(f"the server has no group {group.name!r}; it has {', '.join(have) or 'none'}")
        changed = [field for field in fields if _plain(own[field]) != _plain(there[field])]
        if changed:
            listing = "; ".join(f"{field}: {there[field]!r} there, {own[field]!r} here" for field in changed)
            raise AlreadyInitializedError(f"group {group.name!r} is another one at the server ({listing})")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, list | tuple | range) else value
