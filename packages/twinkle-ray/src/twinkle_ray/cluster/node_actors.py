"""Small actors that belong to one node: agents and input waiters."""

from __future__ import annotations

from typing import Any

from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

ATTEMPTS = 100  # Ray's retries of requests that may run twice, for lost messages; a time limit ends them


def options_on(node: str, *, soft: bool = False) -> dict[str, Any]:
    """The options of an actor that is placed on a node, and not started again.

    Args:
        node: Ray's id of the node.
        soft: The actor may be placed elsewhere.
    """
    return {
        "num_cpus": 0,
        "memory": 1,  # byte: Ray sends the start of an actor without any need through a random node, which may be lost
        "max_restarts": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=soft),
    }
