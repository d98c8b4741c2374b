"""The backend over running groups: the driver and every worker call groups through it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

import ray

from twinkle_ray.by_node.node_reply import NodeReply
from twinkle_ray.cluster.forks import leave_to_parent
from twinkle_ray.cluster.places import HEAD
from twinkle_ray.replies.reply import RayReply
from twinkle_ray.replies.waiting_inputs import WaitingInputs
from twinkle_remote.errors import PlacementError
from twinkle_remote.protocol import Backend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from twinkle_ray.by_node.node_reply import AgentReply
    from twinkle_ray.cluster.lost_nodes import LostNodes
    from twinkle_ray.objects.object_store import RayStore
    from twinkle_ray.workers.group import RayGroup
    from twinkle_remote.protocol import Outcome, Reply

    _Reply = RayReply | NodeReply
    _Pending = Mapping[ray.ObjectRef[Any], RayReply | AgentReply]

_TOGETHER = 0.05  # seconds to wait for all answers at once: one wake-up instead of one for each
_REPLIES = (RayReply, NodeReply)
_LOOK = 1.0  # seconds between checks whether the answers can still arrive


class RayGroups(Backend):
    """The backend over groups that already run.

    Args:
        groups: The groups.
        store: The store of this process.
        agents: The nodes' agents by node id, where there are several nodes.
        lost_nodes: The lost head and lost nodes; None where nobody notices them.
        agent: The agent of this node; None where there is one node.
    """

    def __init__(
        self,
        groups: Sequence[RayGroup],
        store: RayStore,
        agents: Mapping[str, Any],
        lost_nodes: LostNodes | None = None,
        agent: Any = None,
    ) -> None:
        self.store = store
        store.lost_nodes = self._lost_nodes = lost_nodes
        store.agents = self._agents = agents
        self._waiting = WaitingInputs(agent)
        self._groups: dict[str, RayGroup] = {}
        for group in groups:
            self.replace(group)

    def all(self) -> Sequence[RayGroup]:
        """All groups."""
        return tuple(self._groups.values())

    def replace(self, group: RayGroup) -> None:
        """Replace the group of the same name, or take in that it has other workers."""
        self._groups[group.name] = group
        labels = {member.id: member.info.label() for one in self.all() for member in one.members}
        for one in self.all():
            one.labels = labels
            one.agents = self._agents
            one.waiting = self._waiting

    def take_agent(self, agent: Any, lost_nodes: LostNodes | None = None) -> None:
        """Take the agent of this node, which was the only one before.

        Args:
            agent: The agent.
            lost_nodes: As for the constructor; None keeps what is known.
        """
        self._waiting.take_agent(agent)
        if lost_nodes is not None:
            self._lost_nodes = lost_nodes

    def group(self, name: str) -> RayGroup:
        """A group by name."""
        if name not in self._groups:
            known = ", ".join(map(repr, self._groups)) or "none"
            raise PlacementError(f"there is no group {name!r}; initialize was given {known}")
        return self._groups[name]

    def wait(self, replies: Sequence[Reply], timeout: float | None) -> Sequence[Reply]:
        """Wait until at least one reply is done."""
        until = None if timeout is None else time.monotonic() + timeout
        mine = cast("Sequence[RayReply | NodeReply]", replies)
        waited = timeout == 0
        while True:
            open_ones = [reply for reply in mine if reply.outcome is None]
            pending = {answer.ref: answer for answer in {reply.source for reply in open_ones}}
            if len(open_ones) < len(mine):
                until, waited = 0.0, True
            if pending and (waited or not self._read_at_once(pending, until, mine)):
                self._read_some(pending, mine, None if until is None else max(0.0, until - time.monotonic()))
            waited = True
            done = [reply for reply in mine if reply.outcome is not None]
            if done or (until is not None and time.monotonic() >= until):
                return done

    def _read_at_once(self, pending: _Pending, until: float | None, replies: Sequence[_Reply]) -> bool:
        """Wait shortly for all answers with one request; whether they were read."""
        together = _TOGETHER if until is None else min(max(0.0, until - time.monotonic()), _TOGETHER)
        return not self._lost(replies) and _read_together(pending, together)

    def _read_some(self, pending: _Pending, replies: Sequence[_Reply], timeout: float | None) -> None:
        """Wait for one answer, and read those that are there."""
        ready, _ = ray.wait(list(pending), num_returns=len(pending), timeout=0)
        if not ready:
            ready = self._first(pending, replies, timeout)
        if len(ready) > 1 and _read_together({ref: pending[ref] for ref in ready}, None):
            return
        for ref in ready:
            pending[ref].read()

    def _first(self, pending: _Pending, replies: Sequence[_Reply], timeout: float | None) -> list[Any]:
        """Wait for one answer; a reply whose node, or whose cluster's head, is lost gets a failure as its outcome."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self._give_up(replies):
            left = _LOOK if until is None else min(_LOOK, until - time.monotonic())
            if left <= 0:
                break
            ready, _ = ray.wait(list(pending), num_returns=1, timeout=left)
            if ready:
                return list(ready)
        return []

    def _lost(self, replies: Iterable[_Reply]) -> dict[_Reply, tuple[str, str]]:
        """For each reply that cannot arrive any more, the lost node and the reason."""
        known = self._lost_nodes
        if known is None or not known.any_lost():
            return {}
        out = {}
        for reply in replies:
            nodes = (HEAD, *reply.nodes) if reply.outcome is None else ()
            found = [(node, why) for node in nodes if (why := known.lost(node)) is not None]
            if found:
                out[reply] = found[0]
        return out

    def _give_up(self, replies: Iterable[_Reply]) -> bool:
        """Give a failure to every reply that cannot arrive any more; whether there is one."""
        lost = self._lost(replies)
        for reply, (node, why) in lost.items():
            reply.lose(ray.exceptions.NodeDiedError(why), node)  # type: ignore[no-untyped-call]  # Ray's own gap
        return bool(lost)

    def when_done(self, reply: Reply, notify: Callable[[], None]) -> bool:
        """Call a function when a reply is done, in a thread of Ray."""
        if isinstance(reply, NodeReply):
            reply.source.when_done(reply, notify)
            return True
        assert isinstance(reply, RayReply)
        reply.ref.future().add_done_callback(lambda _: notify())
        return True

    def outcome(self, reply: Reply) -> Outcome:
        """The outcome of a reply that is done."""
        assert isinstance(reply, _REPLIES)
        return reply.read()

    def attached(self) -> Sequence[RayGroup]:
        """All groups: the driver asks them for their calls."""
        return self.all()

    def after_fork(self) -> bool:
        """Leave the connection to the cluster to the parent process."""
        leave_to_parent()
        return False

    def close(self) -> None:
        """End the input waiter; the groups belong to the driver."""
        self._waiting.close()
        self.store.agent, self.store.agents = None, {}


def _read_together(pending: _Pending, timeout: float | None) -> bool:
    """Read all answers with one request; False if one is late or an error: then each must be read alone."""
    refs = list(pending)
    try:
        wires: list[Any] = ray.get(refs, timeout=timeout)
    except ray.exceptions.RayError:  # GetTimeoutError is one
        return False
    for ref, wire in zip(refs, wires, strict=True):
        pending[ref].take_part(ref, wire)
    return True
