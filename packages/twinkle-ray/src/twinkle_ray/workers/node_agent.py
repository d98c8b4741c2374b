"""The agent of a node, where a cluster has several: it cuts rows of values and reads stacks of workers there."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import ray

from twinkle_ray.cluster.node_actors import options_on
from twinkle_ray.cluster.remote_once import remote_once
from twinkle_ray.objects import chunks as rows
from twinkle_ray.objects.pickling import Pickled, pack
from twinkle_ray.workers.shown_waits import read_waits
from twinkle_ray.workers.stack_dump import is_there, read_stacks
from twinkle_ray.workers.withdrawn import write_withdrawn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_remote.protocol import Wait

_SHARED_FOR = 10.0  # seconds that a piece is held for the other ranks of the node


class NodeAgent:
    """Moves rows between nodes instead of whole values; a piece that several ranks of a node read moves once."""

    def __init__(self) -> None:
        self._agents: Mapping[str, Any] = {}
        self._pieces: dict[tuple[str, int, int], tuple[float, Any]] = {}
        self._lost: Mapping[str, str] = {}

    def connect(self, agents: Mapping[str, Any]) -> None:
        """Take the agents of all nodes, by node id."""
        self._agents = agents

    def piece(
        self, held: Sequence[ray.ObjectRef[Pickled]], node: str, start: int, stop: int
    ) -> list[ray.ObjectRef[Pickled]]:
        """Rows [start, stop) of a value that lies on another node, as a ref that every rank of this node may read."""
        now = time.monotonic()
        for known, (since, _) in list(self._pieces.items()):
            if now - since > _SHARED_FOR:
                del self._pieces[known]
        key = (held[0].hex(), start, stop)
        if key not in self._pieces:
            self._pieces[key] = now, self._agents[node].cut.remote(list(held), start, stop)
        return [self._pieces[key][1]]

    def cut(self, held: Sequence[ray.ObjectRef[Pickled]], start: int, stop: int) -> Pickled:
        """Rows [start, stop) of a value that lies on this node, in its stored form."""
        return pack(rows.cut(ray.get(held[0]).open(), start, stop))

    def take_lost(self, lost: Mapping[str, str]) -> None:
        """Take which nodes are lost, and why."""
        self._lost = lost

    def lost_nodes(self) -> Mapping[str, str]:
        """The reasons of the lost nodes by node id, for those who wait for them on this node."""
        return self._lost

    def stacks(self, asked: Sequence[tuple[int, int]]) -> list[str]:
        """The stacks of workers of this node, each given as its pid and the descriptor of its stack."""
        return read_stacks(asked)

    def is_there(self, pid: int, descriptor: int) -> bool:
        """Whether a worker of this node is there, given as its pid and the descriptor of its stack."""
        return is_there(pid, descriptor)

    def waits(self, pids: Sequence[int]) -> list[Wait | None]:
        """What the tasks of workers of this node wait for."""
        return read_waits(pids)

    def ask_waits(self, node: str, pids: Sequence[int]) -> list[ray.ObjectRef[list[Wait | None]]]:
        """Ask the agent of another node what the tasks of its workers wait for; its answer is not waited for here."""
        return [self._agents[node].waits.remote(pids)]

    def withdraw(self, node: str, asked: Sequence[tuple[int, str]]) -> None:
        """Have workers of a node not begin tasks, each given as a process id and Ray's id of the task."""
        if node == ray.get_runtime_context().get_node_id():
            write_withdrawn(asked)
        else:
            self._agents[node].withdraw.remote(node, asked)


def start_agents(nodes: Sequence[str], agents: dict[str, Any]) -> None:
    """Start an agent on each of some nodes, and make all agents known to each other.

    Args:
        nodes: Ray's ids of the nodes.
        agents: The agents by node id; the new ones are added.
    """
    actor_class = remote_once(NodeAgent)
    for node in nodes:
        agents[node] = actor_class.options(**options_on(node)).remote()
    for agent in agents.values():
        agent.connect.remote(agents)


def tell_agents(agents: Mapping[str, Any], lost: Mapping[str, str]) -> None:
    """Tell the agents that can be reached which nodes are lost.

    Args:
        agents: All agents by node id.
        lost: The reasons of the lost nodes by node id.
    """
    for node, agent in list(agents.items()):  # a start may add agents meanwhile
        if node not in lost:
            agent.take_lost.remote(lost)
