"""The nodes of a cluster: their resources, what is free of them, and actors that belong to one node."""

from __future__ import annotations

import ipaddress
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import ray

from twinkle_ray.ray_internals import free_resources

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ATTEMPTS = 100  # Ray's retries of requests that may run twice, for lost messages; a time limit ends them


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a cluster.

    Attributes:
        id: Ray's id of it.
        name: Its name and address, for messages.
        total: Resources by name.
        free: Resources that are not reserved.
    """

    id: str
    name: str
    total: Mapping[str, float]
    free: Mapping[str, float]


def alive_nodes() -> Sequence[Node]:
    """Return the nodes that are alive, as devices are counted: the head first, then by address and name."""
    free = free_resources()
    nodes: Sequence[Mapping[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]  # Ray's own gap
    found = [node for node in nodes if node["Alive"]]
    found.sort(key=_order)
    names = Counter(_name(node) for node in found)
    out = []
    for node in found:
        id_, name = node["NodeID"], _name(node)
        shown = name if names[name] == 1 else f"{name} #{id_[:6]}"
        out.append(Node(id_, shown, _named(node["Resources"]), _named(free.get(id_, {}))))
    return out


def _name(node: Mapping[str, Any]) -> str:
    name, address = node["NodeName"], node["NodeManagerAddress"]
    return str(address) if name == address else f"{name} ({address})"


def _named(resources: Mapping[str, float]) -> Mapping[str, float]:
    return {
        name: amount for name, amount in resources.items() if not name.startswith("node:") and "_group_" not in name
    }


def _order(node: Mapping[str, Any]) -> tuple[bool, bytes, str, int, str]:
    address = node["NodeManagerAddress"]
    try:
        number = ipaddress.ip_address(address).packed
    except ValueError:  # a host name
        number = address.encode()
    is_head = "node:__internal_head__" in node["Resources"]
    return not is_head, number, node["NodeName"], node["NodeManagerPort"], node["NodeID"]


@cache
def remote_once(target: Callable[..., Any], concurrency_groups: tuple[tuple[str, int], ...] = ()) -> Any:
    """`ray.remote` of a class or function of a module, always the same object.

    Ray keeps each that `ray.remote` returns until the session ends: at the driver, at the head, and in every process
    that gets a handle.

    Args:
        target: The class or function; one of its module, not of a call.
        concurrency_groups: Ray's concurrency groups of an actor and their threads.
    """
    remote: Any = ray.remote  # its types lack `concurrency_groups`
    options = {"concurrency_groups": dict(concurrency_groups)} if concurrency_groups else {}
    return remote(**options)(target) if options else remote(target)
