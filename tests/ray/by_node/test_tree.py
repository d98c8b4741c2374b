"""The tree of nodes: one way to each, over which it is reached."""

from __future__ import annotations

import pytest

from twinkle_ray.by_node.tree import above, children, next_hop, way


@pytest.mark.parametrize("fan_out", [1, 2, 3, 32])
def test_each_node_has_one_way_which_the_messages_take(fan_out: int) -> None:
    count = 200
    below = {at: list(children(at, count, fan_out)) for at in range(count)}
    first = [node for node in range(count) if above(node, fan_out) is None]
    assert first == list(range(min(fan_out, count)))
    assert sorted(first + [node for nodes in below.values() for node in nodes]) == list(range(count))
    assert all(above(node, fan_out) == at for at, nodes in below.items() for node in nodes)
    for node in range(count):
        passed, at = [], None
        while at != node:
            at = next_hop(at, node, fan_out)
            passed.append(at)
        assert passed == way(node, fan_out)[::-1]


def test_a_thousand_nodes_are_two_messages_away() -> None:
    assert max(len(way(node, 32)) for node in range(1024)) == 2
    assert max(len(way(node, 32)) for node in range(16_384)) == 3
