"""The agent of a node, where a cluster has several: it cuts rows of values and reads stacks of workers there."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import ray

from twinkle_ray.cluster.node_actors import ATTEMPTS, options_on
from twinkle_ray.cluster.remote_once import remote_once
from twinkle_ray.objects import chunks as rows
from twinkle_ray.objects.pickling import Pickled, pack
from twinkle_ray.replies.withdrawn import write_withdrawn
from twinkle_ray.workers.shown_waits import read_waits
from twinkle_ray.workers.stack_dump import is_alive, read_stacks

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    from twinkle_ray.objects.shared_memory.placed import Placed
    from twinkle_remote.protocol import Columns, Rows, WorkerWaits

    _Piece = ray.ObjectRef[Pickled]

_SHARED_FOR = 10.0  # seconds that a piece is held for the other ranks of the node


class NodeAgent:
    """Moves rows between nodes instead of whole values; a piece that several ranks of a node read moves once."""

    def __init__(self) -> None:
        self._agents: Mapping[str, Any] = {}
        self._pieces: dict[tuple[object, ...], tuple[float, Any]] = {}
        self._lost: Mapping[str, str] = {}

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
        """Rows of a value that lies on this node, in its stored form; see `PickingStore.pick`."""
        form = ray.get(held[0]).open()
        if columns is None and isinstance(numbers, range) and numbers.step == 1:
            return pack(rows.cut(form, numbers.start, numbers.stop))
        return pack(rows.fold(rows.pick(form, numbers, columns)[0]))

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

    def take_lost(self, lost: Mapping[str, str]) -> None:
        """Take which nodes are lost, and why."""
        self._lost = lost

    def lost_nodes(self) -> Mapping[str, str]:
        """The reasons of the lost nodes by node id, for those who wait for them on this node."""
        return self._lost

    def stacks(self, asked: Sequence[tuple[int, int]]) -> list[str]:
        """The stacks of workers of this node, each given as its pid and the descriptor of its stack."""
        return read_stacks(asked)

    def is_alive(self, pid: int, descriptor: int) -> bool:
        """Whether a worker of this node is there, given as its pid and the descriptor of its stack."""
        return is_alive(pid, descriptor)

    def waits(self, pids: Sequence[int]) -> list[WorkerWaits | None]:
        """The waits of the tasks of workers of this node."""
        return read_waits(pids)

    def ask_waits(self, node: str, pids: Sequence[int]) -> list[ray.ObjectRef[list[WorkerWaits | None]]]:
        """Ask the agent of another node what the tasks of its workers wait for; its answer is not waited for here."""
        return [self._agents[node].waits.remote(pids)]

    def withdraw(self, node: str, asked: Sequence[tuple[int, str]]) -> None:
        """Have workers of a node not begin tasks, each given as a process id and Ray's id of the task."""
        if node == ray.get_runtime_context().get_node_id():
            write_withdrawn(asked)
        else:
            self._agents[node].withdraw.remote(node, asked)


def start_agents(
    nodes: Sequence[str], agents: dict[str, Any], lost: Container[str] = frozenset()
) -> dict[str, ray.ObjectRef[None]]:
    """Start an agent on each of some nodes, and make all agents known to each other.

    A worker's question may overtake the driver's message, so that an agent must know the others before anyone asks it.

    Args:
        nodes: Ray's ids of the nodes.
        agents: The agents by node id; the new ones are added.
        lost: Ids of lost nodes, whose agents are left out.

    Returns:
        For each of the other agents, by node id, a ref that is there as soon as it knows the others.
    """
    actor_class = remote_once(NodeAgent)
    for node in nodes:
        agents[node] = actor_class.options(**options_on(node)).remote()
    return {
        node: agent.connect.options(max_task_retries=ATTEMPTS).remote(agents)
        for node, agent in agents.items()
        if node not in lost
    }


def report_to_agents(agents: Mapping[str, Any], lost: Mapping[str, str]) -> None:
    """Tell the agents that can be reached which nodes are lost.

    Args:
        agents: All agents by node id.
        lost: The reasons of the lost nodes by node id.
    """
    for node, agent in list(agents.items()):  # a start may add agents meanwhile
        if node not in lost:
            agent.take_lost.remote(lost)
