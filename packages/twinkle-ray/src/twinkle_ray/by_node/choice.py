"""Which groups are called by node, and the start of the agents for them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal

from twinkle_ray.by_node.agent_tree import AgentPlace, AgentTree, places_of
from twinkle_ray.by_node.call_agent import connect_call_agents, start_call_agents
from twinkle_ray.by_node.calls_by_node import CallsByNode
from twinkle_ray.by_node.tree import FAN_OUT, above
from twinkle_ray.placement.actor_set import get_within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_ray.workers.group import RayGroup

Calls = Literal["auto", "direct", "by_node"]
RANKS_OF_AGENT = 64  # of a group on one node; further ranks have another agent
_FROM_RANKS = 64  # of a group: its driver works 0.17x as much; on one node the call itself takes 1.2x to 2x the time
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


def start_tree(groups: Sequence[RayGroup], calls: Calls, timeout: float) -> AgentTree | None:
    """Start the agents for those groups that are called by node; None if there is none.

    Args:
        groups: The groups.
        calls: The option of the session.
        timeout: Seconds in which the agents must be there.

    Raises:
        PlacementError: They are not.
    """
    chosen = [group for group in groups if goes_by_node(calls, [member.node for member in group.members])]
    if not chosen:
        return None
    places = list(dict.fromkeys(place for group in chosen for place in _places(group)))
    agents = start_call_agents([place.node for place in places], FAN_OUT)
    tree = AgentTree(places, agents, FAN_OUT)
    connecting = connect_call_agents(agents, FAN_OUT, range(len(agents)))
    for group in chosen:
        group.by_node = CallsByNode(group, tree, _places(group))
        connecting += group.by_node.ranks_taken(range(group.size))
    get_within(connecting, timeout, _UNCONNECTED)
    return tree


def _add_places(tree: AgentTree, places: Sequence[AgentPlace], timeout: float) -> None:
    """Start agents for those places that have none yet; one below a lost agent is not reached."""
    fresh = [place for place in dict.fromkeys(places) if tree.index(place) is None]
    if not fresh:
        return
    first = len(tree.agents)
    tree.add(fresh, start_call_agents([place.node for place in fresh], FAN_OUT, first))
    upper = {above(index, FAN_OUT) for index in range(first, len(tree.agents))}
    told = [index for index in upper if index is not None and not tree.is_cut(index)]
    get_within(connect_call_agents(tree.agents, FAN_OUT, told), timeout, _UNCONNECTED)


def _places(group: RayGroup) -> list[AgentPlace]:
    return places_of([member.node for member in group.members], RANKS_OF_AGENT)


def renew_ranks(group: RayGroup, old: RayGroup, ranks: Sequence[int], tree: AgentTree | None, timeout: float) -> None:
    """Make the new workers of a group known to their agents, if it is called by node.

    Args:
        group: The group; a new one if all of its workers are new.
        old: The group as it was.
        ranks: The ranks that have new workers.
        tree: The agents.
        timeout: Seconds in which the agents must answer.

    Raises:
        PlacementError: They do not; the group is called without them.
    """
    if old.by_node is None or tree is None:
        return
    if group is not old:
        _add_places(tree, _places(group), timeout)
        group.by_node = CallsByNode(group, tree, _places(group))
    assert group.by_node is not None
    ranks = [rank for rank in ranks if group.by_node.reaches(rank)]
    get_within(group.by_node.ranks_taken(ranks, renewed=True), timeout, _UNCONNECTED)
