"""The agents of a session as their sender sees them: the ways to the nodes, and the agents that are lost."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from twinkle_ray.by_node.tree import way

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_ray.by_node.messages import NodeMessage


class AgentPlace(NamedTuple):
    """Where an agent is.

    Attributes:
        node: Ray's id of the node.
        part: Its part of the ranks of each group there, from 0 on: a node with many ranks has several agents.
    """

    node: str
    part: int = 0


def agent_slots(nodes: Sequence[str], ranks_each: int) -> list[AgentPlace]:
    """The place of the agent of each rank of a group.

    Args:
        nodes: The node of each rank.
        ranks_each: Ranks of a group for which one agent works at most.
    """
    seen: Counter[str] = Counter()
    out = []
    for node in nodes:
        out.append(AgentPlace(node, seen[node] // ranks_each))
        seen[node] += 1
    return out


class AgentTree:
    """The agents of a session.

    Args:
        places: Where each is, in the order of the tree.
        agents: The agents.
        fan_out: As in `tree`.
    """

    def __init__(self, places: Sequence[AgentPlace], agents: Sequence[Any], fan_out: int) -> None:
        self.agents: tuple[Any, ...] = ()
        self._fan_out = fan_out
        self._places: tuple[AgentPlace, ...] = ()
        self._index: dict[AgentPlace, int] = {}
        self._ways: list[list[int]] = []
        self.add(places, agents)
        self._lock = threading.Lock()
        self._sent: dict[int, int] = {}
        self._lost: set[int] = set()

    def add(self, places: Sequence[AgentPlace], agents: Sequence[Any]) -> None:
        """Add agents behind those that there are.

        Args:
            places: Where each is.
            agents: The agents.
        """
        count = len(self.agents)
        self._ways += [way(index, self._fan_out) for index in range(count, count + len(places))]
        self._places += tuple(places)
        self.agents += tuple(agents)
        self._index.update({place: index for index, place in enumerate(places, count)})

    def index(self, place: AgentPlace) -> int | None:
        """Index of the agent of a place; None for a place without one."""
        return self._index.get(place)

    def root(self, agent: int) -> int:
        """Index of the agent to which messages for an agent are sent."""
        return self._ways[agent][-1]

    def node_of(self, agent: int) -> str:
        """Ray's id of the node of an agent."""
        return self._places[agent].node

    def nodes_to(self, agent: int) -> Sequence[str]:
        """Ray's ids of the nodes on the way to an agent."""
        return [self._places[index].node for index in self._ways[agent]]

    @property
    def whole(self) -> bool:
        """Whether no agent is known to be lost."""
        return not self._lost

    def is_cut(self, agent: int) -> bool:
        """Whether an agent, or one on the way to it, is lost."""
        return bool(self._lost) and not self._lost.isdisjoint(self._ways[agent])

    def lose(self, agent: int) -> None:
        """Take that an agent is lost."""
        self._lost.add(agent)

    def lose_node(self, node: str) -> None:
        """Take that a node is lost, by Ray's id."""
        self._lost.update([index for index, place in enumerate(self._places) if place.node == node])

    def send(self, root: int, message: NodeMessage) -> tuple[int, Any]:
        """Send a message; returns its number and the ref of its answer."""
        with self._lock:
            number = self._sent[root] = self._sent.get(root, -1) + 1
            return number, self.agents[root].run.remote(number, message)

    def skip(self, root: int, number: int) -> None:
        """Tell an agent that a message does not come."""
        self.agents[root].skip.remote(number)
