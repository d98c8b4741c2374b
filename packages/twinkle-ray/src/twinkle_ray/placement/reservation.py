"""The reservation of resources for every worker within a deadline; all or nothing is reserved."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from twinkle_ray.cluster.nodes import alive_nodes, remote_once
from twinkle_ray.placement.assign import BusyError, InfeasibleError, assign, assign_at, resource
from twinkle_ray.workers.rank_actor import device_numbers
from twinkle_remote.errors import PlacementError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_mesh import DeviceGroup
    from twinkle_ray.cluster.nodes import Node
    from twinkle_ray.placement.assign import DeviceAssignment

_POLL = 0.2  # seconds between checks of what is free
_FREE_SECONDS = 5.0  # in which Ray frees a placement group
_NODE = "ray.io/node-id"


@dataclass(frozen=True, slots=True)
class Reserved:
    """The resources that are reserved for one worker.

    Attributes:
        placement_group: Ray's placement group.
        bundle: Index of the worker's bundle in it.
        node: Index of the node, in the order in which devices are counted.
        node_id: Ray's id of the node.
        resources: What its actor takes of the bundle.
        devices: Ray's ids of its devices where they were named; Ray chooses them otherwise.
        node_devices: Number of devices of their type on the node.
    """

    placement_group: Any
    bundle: int
    node: int
    node_id: str
    resources: Mapping[str, float]
    devices: tuple[str, ...] | None = None
    node_devices: int = 0

    def options(self) -> dict[str, Any]:
        """The options of an actor or task that runs in this reservation."""
        rest = dict(self.resources)
        cpus, gpus = rest.pop("CPU", 0), rest.pop("GPU", 0)
        strategy = PlacementGroupSchedulingStrategy(self.placement_group, placement_group_bundle_index=self.bundle)
        return {"num_cpus": cpus, "num_gpus": gpus, "resources": rest, "scheduling_strategy": strategy}


class Reservation:
    """The resources that are reserved for all groups.

    Args:
        groups: The groups.
        timeout: Seconds to wait for what others hold.
        colocate: Names of groups that share their nodes, in sets.

    Raises:
        PlacementError: The cluster cannot hold the groups, or not within the time; nothing stays reserved.
    """

    def __init__(self, groups: Sequence[DeviceGroup], timeout: float, colocate: Sequence[Sequence[str]] = ()) -> None:
        self._colocate = colocate
        self._held: dict[str, list[Any]] = {}
        self.places: dict[str, Sequence[Reserved]] = {}
        self.take(groups, timeout)

    def take(self, groups: Sequence[DeviceGroup], timeout: float, at: Sequence[str] = ()) -> None:
        """Reserve resources for further groups.

        Args:
            groups: The groups.
            timeout: As for the constructor.
            at: Ray's id of the node of each worker, for one group alone; empty to choose them.

        Raises:
            PlacementError: As above; nothing is reserved for these groups then.
        """
        until = time.monotonic() + timeout
        names = [group.name for group in groups]
        while True:
            nodes = alive_nodes()
            try:
                found = {groups[0].name: assign_at(nodes, at)} if at else assign(groups, nodes, self._colocate)
                self._take(groups, found, nodes, until)
            except BusyError as error:
                self.free(names)
                if time.monotonic() >= until:
                    raise PlacementError(f"the groups found no place within {timeout:g} s; {error}") from None
                time.sleep(_POLL)
            except BaseException as error:
                self.free(names)
                if isinstance(error, InfeasibleError):
                    raise PlacementError(f"the cluster cannot hold the groups; {error}") from None
                raise
            else:
                return

    def free(self, names: Sequence[str] | None = None) -> None:
        """Free what groups hold, all of it by default, and wait until it is free."""
        held = [one for name in list(self._held if names is None else names) for one in self._held.pop(name, [])]
        for reserved in held:
            remove_placement_group(reserved)
        until = time.monotonic() + _FREE_SECONDS
        while held and time.monotonic() < until:
            held = [reserved for reserved in held if placement_group_table(reserved).get("state") != "REMOVED"]
            if held:
                time.sleep(_POLL / 10)

    def _take(
        self,
        groups: Sequence[DeviceGroup],
        assigned: Mapping[str, Sequence[DeviceAssignment]],
        nodes: Sequence[Node],
        until: float,
    ) -> None:
        named = [group for group in groups if any(one.devices is not None for one in assigned[group.name])]
        for group in named:
            self.places[group.name] = self._take_named(group, assigned[group.name], nodes, until)
        for group in groups:
            if group not in named:
                self.places[group.name] = self._take_any(group, assigned[group.name], nodes, until)

    def _take_any(
        self, group: DeviceGroup, assigned: Sequence[DeviceAssignment], nodes: Sequence[Node], until: float
    ) -> Sequence[Reserved]:
        asked = {resource(group.device_type, nodes): float(group.gpus_per_worker)}
        reserved = self._reserve(group.name, [asked] * len(assigned), [nodes[one.node] for one in assigned])
        _await([reserved], until)
        return [
            Reserved(reserved, index, one.node, nodes[one.node].id, asked, node_devices=_count(nodes[one.node], asked))
            for index, one in enumerate(assigned)
        ]

    def _take_named(
        self, group: DeviceGroup, assigned: Sequence[DeviceAssignment], nodes: Sequence[Node], until: float
    ) -> Sequence[Reserved]:
        """Reserve single devices until the named ones are among them, then free the rest: Ray chooses the devices."""
        kind = resource(group.device_type, nodes)
        holders: dict[tuple[int, int], tuple[Any, str]] = {}
        for index in dict.fromkeys(one.node for one in assigned):
            wanted = {device for one in assigned if one.node == index for device in one.devices or ()}
            room = int(nodes[index].free.get(kind, 0))
            got: dict[int, tuple[Any, str]] = {}
            while missing := wanted - got.keys():
                count = min(max(*missing, len(wanted) - 1) + 1, room) - len(got)  # Ray mostly begins with the lowest
                count = max(count, min(len(missing), room - len(got)))
                if count <= 0:
                    raise BusyError(f"busy: {kind} {sorted(missing)} of node {nodes[index].name} are held by others")
                fresh = [self._reserve(group.name, [{kind: 1.0}], [nodes[index]]) for _ in range(count)]
                _await(fresh, until)
                for (position, id_), reserved in zip(_device_of_each(fresh, kind, until), fresh, strict=True):
                    got[position] = reserved, id_
            for device, (reserved, id_) in got.items():
                if device in wanted:
                    holders[index, device] = reserved, id_
                else:
                    self._held[group.name].remove(reserved)
                    remove_placement_group(reserved)
        out = []
        for one in assigned:
            held = [holders[one.node, device] for device in one.devices or ()]
            ids = tuple(id_ for _, id_ in held)
            node, asked = nodes[one.node], {kind: 1.0}
            out.append(Reserved(held[0][0], 0, one.node, node.id, asked, ids, _count(node, asked)))
        return out

    def _reserve(self, name: str, bundles: Sequence[Mapping[str, float]], nodes: Sequence[Node]) -> Any:
        reserved = placement_group(
            [dict(bundle) for bundle in bundles],
            strategy="PACK",
            bundle_label_selector=[{_NODE: node.id} for node in nodes],
        )
        self._held.setdefault(name, []).append(reserved)
        return reserved


def _count(node: Node, asked: Mapping[str, float]) -> int:
    """The node's devices of the type that is asked for."""
    return int(max(node.total.get(kind, 0) for kind in asked))


def _await(reserved: Sequence[Any], until: float) -> None:
    for one in reserved:
        if not one.wait(max(0.1, until - time.monotonic())):
            raise BusyError("busy: others were faster")


def _device_of_each(reserved: Sequence[Any], kind: str, until: float) -> list[tuple[int, str]]:
    """The device that each placement group of one device holds: number among those of its node, and Ray's id of it."""
    probe = remote_once(_accelerators)
    options = [Reserved(one, 0, 0, "", {kind: 1.0}).options() for one in reserved]
    asked = [probe.options(**each, max_retries=0).remote(kind) for each in options]
    found: list[tuple[int, str] | None] = ray.get(asked, timeout=max(10.0, until - time.monotonic()))
    if None in found:
        raise InfeasibleError(f"infeasible: {kind} are not numbered, so that none can be named; give ranks as a count")
    return [one for one in found if one is not None]


def _accelerators(kind: str) -> tuple[int, str] | None:
    """This process's one device of a type: its number among those of its node, and Ray's id; None without a number."""
    ids: Mapping[str, Sequence[object]] = ray.get_runtime_context().get_accelerator_ids()
    own = [str(id_) for id_ in ids.get(kind, ())]
    numbers = device_numbers(kind, own)
    return (numbers[0], own[0]) if len(own) == 1 and numbers is not None else None
