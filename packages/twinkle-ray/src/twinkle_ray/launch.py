"""Starting the workers of a group: reserve, start, ask where they are, order them, give them their ranks."""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from twinkle_ray.environment import allowed
from twinkle_ray.group import RayGroup
from twinkle_ray.placement import actor_options
from twinkle_ray.worker import RankActor, Role, Seat
from twinkle_remote.errors import PlacementError
from twinkle_remote.failure import WorkerInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_mesh import DeviceGroup


def start_actors(group: DeviceGroup, reserved: Any) -> list[Any]:
    """One actor in each bundle of the group's placement group; returns at once."""
    made = ray.remote(RankActor)
    return [
        made.options(
            **actor_options(group),
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(reserved, placement_group_bundle_index=index),
        ).remote()
        for index in range(group.num_workers)
    ]


def give_ranks(
    group: DeviceGroup, actors: Sequence[Any], *, seed: int, env_allow: Sequence[str], timeout: float
) -> RayGroup:
    """Order the actors by node and device, and make each one its rank.

    Raises:
        PlacementError: An actor did not start.
    """
    try:
        seats: list[Seat] = ray.get([actor.seat.remote() for actor in actors], timeout=timeout)
    except ray.exceptions.RayError as error:
        raise PlacementError(f"the workers of group {group.name!r} did not start: {error}") from error
    order = rank_order(seats)
    actors, seats = [actors[i] for i in order], [seats[i] for i in order]
    port = ray.get(actors[0].hold_port.remote(), timeout=timeout)
    size = len(actors)
    per_node = Counter(seat.node_id for seat in seats)
    seen: Counter[str] = Counter()
    begun = []
    for rank, (actor, seat) in enumerate(zip(actors, seats, strict=True)):
        ranks = {
            "RANK": rank,
            "LOCAL_RANK": seen[seat.node_id],
            "WORLD_SIZE": size,
            "LOCAL_WORLD_SIZE": per_node[seat.node_id],
            "MASTER_ADDR": seats[0].address,
            "MASTER_PORT": port,
        }
        seen[seat.node_id] += 1
        environment = {name: str(value) for name, value in ranks.items()}
        role = Role(group.name, rank, size, seed, {**allowed(os.environ, env_allow), **environment}, import_paths())
        begun.append(actor.begin.remote(role))
    ray.get(begun, timeout=timeout)
    infos = [WorkerInfo(group.name, rank, size, seat.host, seat.pid) for rank, seat in enumerate(seats)]
    return RayGroup(group.name, actors, infos)


def rank_order(seats: Sequence[Seat]) -> list[int]:
    """Indices of the seats by node, then by device."""
    nodes = sorted({seat.node_id for seat in seats})
    index = {node: i for i, node in enumerate(nodes)}

    def key(i: int) -> tuple[int, list[tuple[int, str]], int]:
        devices = [(int(device), "") if device.isdecimal() else (0, device) for device in seats[i].devices]
        return index[seats[i].node_id], devices, i

    return sorted(range(len(seats)), key=key)


def import_paths() -> list[str]:
    """Where the driver finds the user's own modules: its script's directory and its working directory."""
    return [os.path.abspath(path or os.getcwd()) for path in dict.fromkeys([sys.path[0], ""])]
