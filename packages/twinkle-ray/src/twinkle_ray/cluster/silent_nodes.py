"""Nodes that Ray lists as alive and that do not answer: for a minute after their link was cut, or their host ended."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from twinkle_ray.cluster.places import addresses_of, connect_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_ray.cluster.nodes import Node

_PATIENCE = 3.0  # seconds in which a node must take a connection: the system tries again after one

_log = logging.getLogger("twinkle.ray")


def without_silent(nodes: Sequence[Node], answering: set[str]) -> list[Node]:
    """The nodes, with nothing free on those that do not answer: their devices go on to be counted.

    Args:
        nodes: All nodes of the cluster.
        answering: Ids of those that have answered, which are not tried again; new ones are added.
    """
    untried = [node.id for node in nodes if node.id not in answering]
    if len(nodes) == 1 or not untried:
        return list(nodes)
    places = {name: place for name, place in addresses_of(untried).items() if name in untried}
    problems = {name: problem for name, problem in connect_all(places, _PATIENCE).items() if problem is not None}
    answering.update(places.keys() - problems.keys())
    out = []
    for node in nodes:
        problem = problems.get(node.id)
        if problem is not None:
            _log.warning("nothing is placed on node %s, which Ray lists as alive: it %s", node.name, problem)
            node = replace(node, name=f"{node.name}, which {problem}", free={})
        out.append(node)
    return out
