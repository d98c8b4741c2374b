"""The assignment of workers to nodes, and to devices where these are named: pure arithmetic over free resources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinkle_ray.placement.colocate import share_nodes
from twinkle_remote.errors import PlacementError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_mesh import DeviceGroup
    from twinkle_ray.cluster.nodes import Node


@dataclass(frozen=True, slots=True)
class DeviceAssignment:
    """The node of one worker, and its devices where these are named.

    Attributes:
        node: Index of the node.
        devices: Indices of its devices on that node; None for any.
    """

    node: int
    devices: tuple[int, ...] | None = None


class InfeasibleError(PlacementError):
    """The cluster cannot hold the groups, even if all of it were free."""


class BusyError(PlacementError):
    """The cluster could hold the groups, but others have reserved what they need."""


def assign(
    groups: Sequence[DeviceGroup], nodes: Sequence[Node], colocate: Sequence[Sequence[str]] = ()
) -> Mapping[str, Sequence[DeviceAssignment]]:
    """Assign every worker of every group: named devices first, then groups on the same nodes, then those hard to fit.

    A group goes to as many nodes as it asks for; one that does not ask goes to one node where one can hold it, and to
    as few as possible otherwise.

    Args:
        groups: The groups.
        nodes: The nodes, in the order in which devices are counted.
        colocate: Names of groups that share their nodes, in sets.

    Returns:
        Assignments by group, in order of node.

    Raises:
        InfeasibleError: They do not fit, or name a device that does not exist, or name one twice.
        BusyError: They would fit if all were free; the message says what is missing where.
    """
    found = _fit(groups, nodes, [node.free for node in nodes], colocate)
    if not isinstance(found, str):
        return found
    whole = _fit(groups, nodes, [node.total for node in nodes], colocate)
    if isinstance(whole, str):
        raise InfeasibleError(f"infeasible: {whole}\n{report(groups, nodes)}")
    raise BusyError(f"busy: {found}\n{report(groups, nodes)}")


def assign_at(nodes: Sequence[Node], at: Sequence[str]) -> Sequence[DeviceAssignment]:
    """Assign the workers of a group to given nodes.

    Args:
        nodes: As for `assign`.
        at: Ray's id of the node of each worker.

    Raises:
        InfeasibleError: A node is not there.
    """
    index = {node.id: number for number, node in enumerate(nodes)}
    missing = [node for node in at if node not in index]
    if missing:
        raise InfeasibleError(f"infeasible: node {missing[0]} is not in the cluster any more")
    return [DeviceAssignment(index[node]) for node in at]


def report(groups: Sequence[DeviceGroup], nodes: Sequence[Node]) -> str:
    """List what each group asks for and what each node has, one line each."""
    rows = [f"  asked: {group.name} = {_asked(group)}" for group in groups]
    kinds = dict.fromkeys(resource(group.device_type, nodes) for group in groups)
    for node in nodes:
        has = ", ".join(
            f"{node.free.get(kind, 0):g} of {node.total[kind]:g} {kind} free" for kind in kinds if kind in node.total
        )
        rows.append(f"  node {node.name}: {has or 'none of ' + ', '.join(kinds)}")
    return "\n".join(rows if nodes else [*rows, "  the cluster has no nodes"])


def resource(device_type: str, nodes: Sequence[Node]) -> str:
    """Ray's name of a device type; upper and lower case of custom resources do not matter."""
    names = {name for node in nodes for name in node.total}
    if device_type in names:
        return device_type
    return next((name for name in sorted(names) if name.upper() == device_type), device_type)


def _asked(group: DeviceGroup) -> str:
    workers = f"{group.num_workers} workers x {group.gpus_per_worker} {group.device_type}"
    if group.nodes is not None:
        workers += f" on {group.nodes} {'node' if group.nodes == 1 else 'nodes'}"
    devices = named_devices(group)
    return workers if devices is None else f"{workers}, devices {list(devices)}"


def named_devices(group: DeviceGroup) -> Sequence[int] | None:
    """The devices that a group names, counted from the first node on; None for any.

    `ranks` names devices itself; where `visible_devices` does not hold these, they count within it.

    Raises:
        InfeasibleError: `ranks` is neither within `visible_devices` nor counts within it.
    """
    held, visible = group.devices, group.visible
    if visible is None:
        return held
    if held is None:
        return visible[: group.num_ranks]
    if set(held) <= set(visible):
        return held
    if max(held) < len(visible):
        return [visible[index] for index in held]
    raise InfeasibleError(
        f"group {group.name!r}: ranks={list(held)} are neither among visible_devices={group.visible_devices!r} nor do "
        f"they count within it; use 0 to {len(visible) - 1}"
    )


def _fit(
    groups: Sequence[DeviceGroup],
    nodes: Sequence[Node],
    free: Sequence[Mapping[str, float]],
    colocate: Sequence[Sequence[str]],
) -> dict[str, Sequence[DeviceAssignment]] | str:
    """Assignments by group, or the reason why they do not fit."""
    left = [dict(node) for node in free]
    assigned: dict[str, Sequence[DeviceAssignment]] = {}
    holders: dict[tuple[str, int], str] = {}
    anywhere = []
    for group in groups:
        kind, devices = resource(group.device_type, nodes), named_devices(group)
        if devices is None:
            anywhere.append(group)
            continue
        for device in devices:
            holder = holders.setdefault((kind, device), group.name)
            if holder != group.name:
                return f"groups {holder!r} and {group.name!r} both name {kind} {device}"
        got = _name(group, kind, devices, nodes, left)
        if isinstance(got, str):
            return got
        assigned[group.name] = got
    for names in colocate:
        together = [group for group in anywhere if group.name in names]
        kinds = [resource(group.device_type, nodes) for group in together]
        if len(together) < 2:
            continue
        shared = share_nodes(together, kinds, left)
        if shared is None:
            asked = ", ".join(_asked(group) for group in together)
            return f"groups {', '.join(names)} are to share their nodes, and ask for {asked}: no nodes hold them so"
        for group, counts in zip(together, shared, strict=True):
            anywhere.remove(group)
            assigned[group.name] = _taken(group, counts, nodes, left)
    for group in sorted(anywhere, key=_hardest_first):
        kind = resource(group.device_type, nodes)
        capacity = [int(node.get(kind, 0) // group.gpus_per_worker) for node in left]
        count = group.num_workers
        per_node = _spread(count, capacity) if group.nodes is None else _share(count, group.nodes, capacity)
        if per_node is None:
            return f"group {group.name!r} asks for {_asked(group)}, and no nodes hold them"
        assigned[group.name] = _taken(group, per_node, nodes, left)
    return assigned


def _hardest_first(group: DeviceGroup) -> tuple[int, int, int]:
    """The order of groups: many devices in one piece are hard to find."""
    if group.nodes is None:
        return 1, -group.gpus_per_worker, -group.num_ranks
    return 0, -group.num_ranks // group.nodes, -group.nodes


def _taken(
    group: DeviceGroup, per_node: Sequence[int], nodes: Sequence[Node], left: list[dict[str, float]]
) -> Sequence[DeviceAssignment]:
    """Take what a number of workers on each node needs."""
    kind = resource(group.device_type, nodes)
    for index, count in enumerate(per_node):
        left[index][kind] = left[index].get(kind, 0) - count * group.gpus_per_worker
    return [DeviceAssignment(index) for index, count in enumerate(per_node) for _ in range(count)]


def _name(
    group: DeviceGroup, kind: str, devices: Sequence[int], nodes: Sequence[Node], left: list[dict[str, float]]
) -> Sequence[DeviceAssignment] | str:
    """Assignments on named devices, which must not straddle nodes within one worker."""
    where = [(index, local) for index, node in enumerate(nodes) for local in range(int(node.total.get(kind, 0)))]
    beyond = [device for device in devices if device >= len(where)]
    if beyond:
        return (
            f"group {group.name!r} names {kind} {beyond}, and the cluster has {len(where)}, counted from 0 whatever "
            "CUDA_VISIBLE_DEVICES or the like names them on their hosts"
        )
    out = []
    per = group.gpus_per_worker
    for first in range(0, len(devices), per):
        held = [where[device] for device in devices[first : first + per]]
        if len({node for node, _ in held}) > 1:
            return (
                f"group {group.name!r}: one worker's devices {list(devices[first : first + per])} are on several nodes"
            )
        left[held[0][0]][kind] = left[held[0][0]].get(kind, 0) - per
        out.append(DeviceAssignment(held[0][0], tuple(local for _, local in held)))
    short = next((index for index, node in enumerate(left) if node.get(kind, 0) < 0), None)
    if short is not None:
        return f"group {group.name!r} names devices of node {nodes[short].name}, where too few are free"
    return sorted(out, key=lambda one: one.node)


def _spread(count: int, capacity: Sequence[int]) -> list[int] | None:
    """Workers on each node: on the tightest that holds all, else on as few as possible; None if too few fit."""
    out = [0] * len(capacity)
    left = count
    while left:
        open_nodes = [index for index in range(len(capacity)) if capacity[index] > out[index] == 0]
        if not open_nodes:
            return None
        enough = [index for index in open_nodes if capacity[index] >= left]
        if enough:
            best = min(enough, key=lambda index: capacity[index])
        else:
            best = max(open_nodes, key=lambda index: capacity[index])
        out[best] = min(capacity[best], left)
        left -= out[best]
    return out


def _share(count: int, nodes: int, capacity: Sequence[int]) -> list[int] | None:
    """Workers on each node, as many on each of the tightest nodes that hold their share; None if too few nodes do."""
    each = count // nodes
    enough = sorted((index for index in range(len(capacity)) if capacity[index] >= each), key=capacity.__getitem__)
    if len(enough) < nodes:
        return None
    chosen = set(enough[:nodes])
    return [each if index in chosen else 0 for index in range(len(capacity))]
