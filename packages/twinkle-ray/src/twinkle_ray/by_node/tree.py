"""The tree in which messages travel to the nodes: each node has one way, so that its messages keep their order."""

from __future__ import annotations

FAN_OUT = 32  # nodes that the caller, or an agent, sends to


def above(node: int, fan_out: int) -> int | None:
    """The node from which a node gets its messages; None for the caller itself.

    Args:
        node: Index of the node, from 0 on.
        fan_out: Nodes below the caller, and below each node; at least 1.
    """
    return None if node < fan_out else node // fan_out - 1


def next_hop(at: int | None, node: int, fan_out: int) -> int:
    """The node to which a message is sent next.

    Args:
        at: Index of the node where the message is; None for the caller.
        node: Index of a node below it.
        fan_out: As for `above`.
    """
    while True:
        upper = above(node, fan_out)
        if upper == at:
            return node
        assert upper is not None, "the node is not below"
        node = upper


def way(node: int, fan_out: int) -> list[int]:
    """The nodes that a message to a node passes, the node itself first."""
    passed = [node]
    while (upper := above(passed[-1], fan_out)) is not None:
        passed.append(upper)
    return passed


def children(at: int, count: int, fan_out: int) -> range:
    """The nodes directly below a node, of `count` nodes."""
    first = (at + 1) * fan_out
    return range(min(first, count), min(first + fan_out, count))
