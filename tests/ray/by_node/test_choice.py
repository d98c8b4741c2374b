"""Which groups are called by node, and which agent each rank has."""

from __future__ import annotations

import pytest

from twinkle_ray.by_node.agent_tree import AgentPlace, AgentTree, agent_slots
from twinkle_ray.by_node.choice import check_calls, goes_by_node


def test_large_groups_with_several_ranks_on_a_node_are_called_by_node() -> None:
    one_node, eight_each = ["a"] * 64, [str(rank // 8) for rank in range(64)]
    assert goes_by_node("auto", one_node) and goes_by_node("auto", eight_each)
    assert not goes_by_node("auto", ["a"] * 8)
    assert not goes_by_node("auto", [str(rank) for rank in range(64)])
    assert goes_by_node("by_node", ["a", "b"]) and not goes_by_node("direct", one_node)


def test_an_unknown_way_is_refused_with_the_known_ones() -> None:
    assert check_calls("by_node") == "by_node"
    with pytest.raises(ValueError, match='calls=\'tree\' must be "auto", "direct" or "by_node"'):
        check_calls("tree")


def test_a_node_with_many_ranks_has_several_agents() -> None:
    places = agent_slots(["a", "a", "b", "a", "b"], 2)
    assert places == [("a", 0), ("a", 0), ("b", 0), ("a", 1), ("b", 0)]


def test_a_lost_agent_cuts_off_those_below_it_and_no_other() -> None:
    places = [AgentPlace(node) for node in "abcdef"]
    tree = AgentTree(places, [None] * 6, 2)
    assert tree.whole and [tree.root(index) for index in range(6)] == [0, 1, 0, 0, 1, 1]
    assert tree.nodes_to(5) == ["f", "b"]
    tree.lose_node("b")
    assert not tree.whole and [tree.is_cut(index) for index in range(6)] == [False, True, False, False, True, True]
