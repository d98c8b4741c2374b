"""Groups on the same nodes: each of these nodes takes its part of every group, so that hand-overs stay within it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinkle_mesh import balanced_slice
from twinkle_ray.cluster.nodes import alive_nodes
from twinkle_remote.errors import PlacementError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_mesh import DeviceGroup
    from twinkle_ray.workers.rank_actor import WorkerLocation


def check_colocate(colocate: Sequence[Sequence[str]], groups: Sequence[DeviceGroup]) -> tuple[tuple[str, ...], ...]:
    """Return the sets of groups to place on the same nodes.

    Args:
        colocate: The names of each set.
        groups: All groups.

    Raises:
        TypeError: It is not a list of lists of names.
        ValueError: A name is unknown, or in two sets, or its group names its devices, or the groups of a set do not
            fit the same number of nodes.
    """
    by_name = {group.name: group for group in groups}
    seen: set[str] = set()
    for names in colocate:
        if isinstance(names, str):
            raise TypeError(f'colocate={colocate!r} must hold sets of names, as [("actor", "sampler")] does')
        for name in names:
            if name not in by_name:
                raise ValueError(f"colocate={colocate!r} names {name!r}; the groups are {', '.join(by_name)}")
            if name in seen:
                raise ValueError(f"colocate={colocate!r} names {name!r} twice; one set can hold all of its groups")
            if by_name[name].devices is not None or by_name[name].visible is not None:
                raise ValueError(f"colocate={colocate!r}: group {name!r} names its devices, and with them its nodes")
            seen.add(name)
        _check_nodes(colocate, [by_name[name] for name in names])
    return tuple(tuple(names) for names in colocate)


def _check_nodes(colocate: Sequence[Sequence[str]], groups: Sequence[DeviceGroup]) -> None:
    """Check that the groups of a set ask for one number of nodes, and have a worker for each of them."""
    first = next((group for group in groups if group.nodes is not None), None)
    if first is None or first.nodes is None:
        return
    for group in groups:
        if group.nodes not in (None, first.nodes):
            raise ValueError(
                f"colocate={colocate!r}: group {first.name!r} has nodes={first.nodes} and group {group.name!r} has "
                f"nodes={group.nodes}; groups of a set are on the same nodes: give one of them alone this number"
            )
        if group.num_workers < first.nodes:
            raise ValueError(
                f"colocate={colocate!r}: group {first.name!r} has nodes={first.nodes} and group {group.name!r} has "
                f"{group.num_workers} workers, and each node of a set needs one of each group"
            )


def share_nodes(
    groups: Sequence[DeviceGroup], kinds: Sequence[str], free: Sequence[Mapping[str, float]]
) -> list[list[int]] | None:
    """Return how many workers of each group go to each node; None if no set of nodes holds them so.

    As many nodes are used as a group asks for, otherwise as few as possible, and of those that hold their part the
    tightest. Workers of a group that hand over to each other by rank are on one node, because each node takes the same
    part of each group.

    Args:
        groups: The groups.
        kinds: Ray's name of the device type of each group.
        free: What is free on each node.
    """
    asked_for = next((group.nodes for group in groups if group.nodes is not None), None)
    most = min(len(free), *(group.num_workers for group in groups))
    for count in range(1, most + 1) if asked_for is None else [asked_for]:
        out = [[0] * len(free) for _ in groups]
        left = set(range(len(free)))
        for index in range(count):
            parts = [balanced_slice(group.num_workers, count, index) for group in groups]
            sizes = [part.stop - part.start for part in parts]
            asked: dict[str, float] = {}
            for group, kind, size in zip(groups, kinds, sizes, strict=True):
                asked[kind] = asked.get(kind, 0) + size * group.gpus_per_worker
            fitting = [node for node in left if all(free[node].get(kind, 0) >= need for kind, need in asked.items())]
            if not fitting:
                break
            best = min(fitting, key=lambda node: (sum(free[node].get(kind, 0) for kind in asked), node))
            left.remove(best)
            for of_group, size in zip(out, sizes, strict=True):
                of_group[best] = size
        else:
            return out
    return None


def nodes_to_keep(name: str, colocate: Sequence[Sequence[str]], locations: Sequence[WorkerLocation]) -> Sequence[str]:
    """Return the nodes of a group that shares them with others; empty for any other group.

    Args:
        name: Name of the group.
        colocate: The sets of groups on the same nodes.
        locations: Where its workers run.

    Raises:
        PlacementError: One of them is lost.
    """
    others = next(([other for other in names if other != name] for names in colocate if name in names), [])
    if not others:
        return ()
    there = {node.id for node in alive_nodes()}
    gone = sorted({one.host for one in locations if one.node_id not in there})
    if gone:
        raise PlacementError(
            f"group {name!r} cannot be restarted alone: colocate places it on the nodes of "
            f"{', '.join(map(repr, others))}, and {', '.join(gone)} is lost; shutdown() and initialize() place "
            "them together anew"
        )
    return [location.node_id for location in locations]
