"""The backend over running groups: the driver and every worker call groups through it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import ray

from twinkle_ray.cluster.forks import leave_to_parent
from twinkle_ray.cluster.node_monitor import HEAD
from twinkle_ray.workers.group import RayReply
from twinkle_ray.workers.waiting_inputs import WaitingInputs
from twinkle_remote.errors import PlacementError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from twinkle_ray.cluster.node_monitor import NodeMonitor
    from twinkle_ray.objects.object_store import RayStore
    from twinkle_ray.workers.group import RayGroup
    from twinkle_remote.protocol import Outcome, Reply, SessionDefaults

_TOGETHER = 0.05  # seconds to wait for all answers at once: one wake-up instead of one for each
_LOOK = 1.0  # seconds between checks whether the answers can still arrive


class RayGroups:
    """The backend over groups that already run.

    Args:
        groups: The groups.
        store: The store of this process.
        agents: The nodes' agents by node id, where there are several nodes.
        monitor: Notices a lost head and lost nodes; None on workers.
    """

    start_timeout: float | None = None

    def __init__(
        self, groups: Sequence[RayGroup], store: RayStore, agents: Mapping[str, Any], monitor: NodeMonitor | None = None
    ) -> None:
        self._store = store
        self._monitor = monitor
        self._agents = agents
        self._waiting = WaitingInputs()
        self._groups: dict[str, RayGroup] = {}
        for group in groups:
            self.replace(group)

    def all(self) -> Sequence[RayGroup]:
        """All groups."""
        return tuple(self._groups.values())

    def replace(self, group: RayGroup) -> None:
        """Replace the group of the same name, or take in that it has other workers."""
        self._groups[group.name] = group
        labels = {member.actor._actor_id.hex(): member.info.label() for one in self.all() for member in one.members}
        for one in self.all():
            one.labels = labels
            one.agents = self._agents
            one.waiting = self._waiting

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
        if timeout != 0 and not self._lost(pending.values()):
            together = _TOGETHER if timeout is None else min(timeout, _TOGETHER)
            if _read_together(pending, together):
                return list(pending.values())
            timeout = None if timeout is None else timeout - together
        ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
        if not ready:
            ready = self._first(pending, timeout)
        if not ready:
            return [reply for reply in pending.values() if reply.outcome is not None]
        done = {ref: pending[ref] for ref in ready}
        if len(done) > 1:
            _read_together(done, None)
        return list(done.values())

    def _first(self, pending: Mapping[ray.ObjectRef[Any], RayReply], timeout: float | None) -> list[Any]:
        """Wait for one answer; a reply whose node, or whose cluster's head, is lost gets a failure as its outcome."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self._give_up(pending.values()):
            left = _LOOK if until is None else min(_LOOK, until - time.monotonic())
            if left <= 0:
                break
            ready, _ = ray.wait(list(pending), num_returns=1, timeout=left)
            if ready:
                return list(ready)
        return []

    def _lost(self, replies: Iterable[RayReply]) -> dict[RayReply, str]:
        """For each reply that cannot arrive any more, the reason."""
        monitor = self._monitor
        if monitor is None or not monitor.has_lost:
            return {}
        head = monitor.lost(HEAD)
        reasons = {reply: head or monitor.lost(reply.group.members[reply.rank].node) for reply in replies}
        return {reply: why for reply, why in reasons.items() if why is not None}

    def _give_up(self, replies: Iterable[RayReply]) -> bool:
        """Give a failure to every reply that cannot arrive any more; whether there is one."""
        lost = self._lost(replies)
        for reply, why in lost.items():
            error = ray.exceptions.NodeDiedError(why)  # type: ignore[no-untyped-call]  # Ray's own gap
            reply.outcome = reply.group.lost(reply, error)
        return bool(lost)

    def when_done(self, reply: Reply, notify: Callable[[], None]) -> bool:
        """Call a function when a reply is done, in a thread of Ray."""
        assert isinstance(reply, RayReply)
        reply.ref.future().add_done_callback(lambda _: notify())
        return True

    def outcome(self, reply: Reply) -> Outcome:
        """The outcome of a reply that is done."""
        assert isinstance(reply, RayReply)
        return reply.read()

    def configure(self, defaults: SessionDefaults) -> None:
        """Do nothing: the driver gives them to the workers."""

    def attached(self) -> Sequence[RayGroup]:
        """All groups: the driver asks them for their calls."""
        return self.all()

    def after_fork(self) -> bool:
        """Leave the connection to the cluster to the parent process."""
        leave_to_parent()
        return False

    def close(self) -> None:
        """End the gate that waits for inputs; the groups belong to the driver."""
        self._waiting.close()


def _read_together(replies: Mapping[ray.ObjectRef[Any], RayReply], timeout: float | None) -> bool:
    """Read all answers with one request; False if one is late or an error: then each must be read alone."""
    try:
        wires = ray.get(list(replies), timeout=timeout)
    except ray.exceptions.RayError:  # GetTimeoutError is one
        return False
    for reply, wire in zip(replies.values(), wires, strict=True):
        reply.take(wire)
    return True
