"""The choice of groups that are called by node, and the start of the agents for them."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

import ray

from twinkle_ray.by_node.agent_tree import AgentPlace, AgentTree, agent_slots
from twinkle_ray.by_node.call_agent import connect_call_agents, start_call_agents
from twinkle_ray.by_node.calls_by_node import CallsByNode
from twinkle_ray.by_node.tree import FAN_OUT, above
from twinkle_ray.placement.first_replies import get_within
from twinkle_remote.errors import PlacementError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_ray.cluster.lost_nodes import LostNodes
    from twinkle_ray.workers.group import RayGroup

Calls = Literal["auto", "direct", "by_node"]
RANKS_OF_AGENT = 64  # of a group on one node; further ranks have another agent
_FROM_RANKS = 64  # of a group: its driver works 0.17x as much; on one node the call itself takes 1.2x to 2x the time
_LOOK_SECONDS = 0.5
_UNCONNECTED = "the agents of the nodes did not start"


def check_calls(calls: str) -> Calls:
    """Return the option `calls`.

    Raises:
        ValueError: It is none of the three.
    """
    known: tuple[Calls, ...] = ("auto", "direct", "by_node")
    for one in known:
        if calls == one:
            return one
    raise ValueError(f'calls={calls!r} must be "auto", "direct" or "by_node"')


def goes_by_node(calls: Calls, nodes: Sequence[str]) -> bool:
    """Whether a group is called by node.

    Args:
        calls: The option of the session.
        nodes: The node of each rank.
    """
    if calls != "auto":
        return calls == "by_node"
    return len(nodes) >= _FROM_RANKS and max(Counter(nodes).values()) > 1


def start_tree(
    groups: Sequence[RayGroup], calls: Calls, timeout: float, lost_nodes: LostNodes | None = None
) -> AgentTree | None:
    """Start the agents for those groups that are called by node; None if there is none.

    Args:
        groups: The groups.
        calls: The option of the session.
        timeout: Seconds in which the agents must be there.
        lost_nodes: The lost nodes.

    Raises:
        PlacementError: They are not, or a node is lost.
    """
    chosen = [group for group in groups if goes_by_node(calls, [member.node for member in group.members])]
    if not chosen:
        return None
    places = list(dict.fromkeys(place for group in chosen for place in _places(group)))
    agents = start_call_agents([place.node for place in places], FAN_OUT)
    tree = AgentTree(places, agents, FAN_OUT)
    connecting = list(connect_call_agents(agents, FAN_OUT, range(len(agents))).items())
    for group in chosen:
        group.by_node = CallsByNode(group, tree, _places(group))
        connecting += group.by_node.ranks_taken(range(group.size)).items()
    nodes = [tree.node_of(index) for index, _ in connecting]
    get_within([answer for _, answer in connecting], timeout, _UNCONNECTED, nodes, lost_nodes)
    return tree


def _add_places(tree: AgentTree, places: Sequence[AgentPlace], timeout: float, lost_nodes: LostNodes | None) -> None:
    """Start agents for those places that have none yet; one below a lost agent is not reached."""
    fresh = [place for place in dict.fromkeys(places) if tree.index(place) is None]
    if not fresh:
        return
    first = len(tree.agents)
    tree.add(fresh, start_call_agents([place.node for place in fresh], FAN_OUT, first))
    upper = {above(index, FAN_OUT) for index in range(first, len(tree.agents))}
    connected = [index for index in upper if index is not None and not tree.is_cut(index)]
    _wait_for(tree, connect_call_agents(tree.agents, FAN_OUT, connected), timeout, lost_nodes)


def _wait_for(tree: AgentTree, asked: Mapping[int, Any], timeout: float, lost_nodes: LostNodes | None) -> None:
    """Wait for agents; the ranks of one that is lost, and those below it, are called without it from now on.

    Args:
        tree: The agents.
        asked: Their answers by index.
        timeout: Seconds for all of them.
        lost_nodes: The lost nodes.

    Raises:
        PlacementError: One is late.
    """
    until = time.monotonic() + timeout
    pending = {answer: index for index, answer in asked.items()}
    while pending:
        left = max(0.0, until - time.monotonic())
        for answer in ray.wait(list(pending), num_returns=len(pending), timeout=min(_LOOK_SECONDS, left))[0]:
            index = pending.pop(answer)
            try:
                ray.get(answer)
            except ray.exceptions.RayError:  # whether it took what it was sent or not: it may lack ranks
                tree.lose(index)
        for answer, index in list(pending.items()):
            if lost_nodes is not None and lost_nodes.lost(tree.node_of(index)) is not None:
                tree.lose(index)
                del pending[answer]
        if pending and left == 0:
            raise PlacementError(f"{_UNCONNECTED} within {timeout:g} s: {len(pending)} of {len(asked)} are missing")


def _places(group: RayGroup) -> list[AgentPlace]:
    return agent_slots([member.node for member in group.members], RANKS_OF_AGENT)


def reconnect_ranks(
    group: RayGroup,
    old: RayGroup,
    ranks: Sequence[int],
    tree: AgentTree | None,
    timeout: float,
    lost_nodes: LostNodes | None = None,
) -> None:
    """Make the new workers of a group known to their agents, if it is called by node.

    Args:
        group: The group; a new one if all of its workers are new.
        old: The group as it was.
        ranks: The ranks that have new workers.
        tree: The agents.
        timeout: Seconds in which the agents must answer.
        lost_nodes: The lost nodes: nobody waits for their agents.

    Raises:
        PlacementError: They do not.
    """
    if old.by_node is None or tree is None:
        return
    if group is not old:
        _add_places(tree, _places(group), timeout, lost_nodes)
        group.by_node = CallsByNode(group, tree, _places(group))
    assert group.by_node is not None
    ranks = [rank for rank in ranks if group.by_node.reaches(rank)]
    _wait_for(tree, group.by_node.ranks_taken(ranks, restarted=True), timeout, lost_nodes)
