"""The agent of a node, where a cluster has several: it cuts rows of values there."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import ray

from twinkle_ray.cluster.nodes import ATTEMPTS, options_on, remote_once
from twinkle_ray.objects import chunks as rows
from twinkle_ray.objects.pickling import Pickled, pack

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    from twinkle_ray.objects.segments import Placed
    from twinkle_remote.protocol import Columns, Rows

    _Piece = ray.ObjectRef[Pickled]

_SHARED_FOR = 10.0  # seconds that a piece is held for the other ranks of the node


class NodeAgent:
    """Moves rows between nodes instead of whole values; a piece that several ranks of a node read moves once."""

    def __init__(self) -> None:
        self._agents: Mapping[str, Any] = {}
        self._pieces: dict[tuple[object, ...], tuple[float, Any]] = {}

    def connect(self, agents: Mapping[str, Any]) -> None:
        """Take the agents of all nodes, by node id."""
        self._agents = agents

    def piece(
        self,
        held: Sequence[ray.ObjectRef[Pickled]],
        node: str,
        numbers: Rows | None,
        columns: Columns | None,
    ) -> list[ray.ObjectRef[Pickled]]:
        """Rows of a value that lies on another node, as a ref that every rank of this node may read."""
        return self._shared(
            (held[0].hex(), numbers, columns), lambda: self._agents[node].cut.remote(list(held), numbers, columns)
        )

    def cut(self, held: Sequence[ray.ObjectRef[Pickled]], numbers: Rows | None, columns: Columns | None) -> Pickled:
        """Rows of a value that lies on this node, in its stored form; see `Store.get`."""
        form = ray.get(held[0]).open()
        if columns is None and isinstance(numbers, range) and numbers.step == 1:
            return pack(rows.cut(form, numbers.start, numbers.stop))
        return pack(rows.fold(rows.unfold(form, numbers, columns)[0]))

    def whole(self, held: Sequence[ray.ObjectRef[Placed]], node: str) -> list[ray.ObjectRef[Pickled]]:
        """A value in a segment of another node, as a ref that every rank of this node may read."""
        return self._shared((held[0].hex(),), lambda: self._agents[node].unplaced.remote(list(held)))

    def _shared(
        self, key: tuple[object, ...], ask: Callable[[], ray.ObjectRef[Pickled]]
    ) -> list[ray.ObjectRef[Pickled]]:
        now = time.monotonic()
        for known, (since, _) in list(self._pieces.items()):
            if now - since > _SHARED_FOR:
                del self._pieces[known]
        if key not in self._pieces:
            self._pieces[key] = now, ask()
        return [self._pieces[key][1]]

    def unplaced(self, held: Sequence[ray.ObjectRef[Placed]]) -> Pickled:
        """A value in a segment of this node, as Ray carries it to others."""
        return ray.get(held[0]).mapped()


def start_agents(
    nodes: Sequence[str], agents: dict[str, Any], alive: Container[str] | None = None
) -> dict[str, ray.ObjectRef[None]]:
    """Start an agent on each of some nodes, and make all agents known to each other.

    A worker's question may overtake the driver's message, so that an agent must know the others before anyone asks it.

    Args:
        nodes: Ray's ids of the nodes.
        agents: The agents by node id; the new ones are added.
        alive: Ids of the nodes that are alive; the agents of others are left out. None is all.

    Returns:
        For each of the other agents, by node id, a ref that is there as soon as it knows the others.
    """
    actor_class = remote_once(NodeAgent)
    for node in nodes:
        agents[node] = actor_class.options(**options_on(node)).remote()
    return {
        node: agent.connect.options(max_task_retries=ATTEMPTS).remote(agents)
        for node, agent in agents.items()
        if alive is None or node in alive
    }
