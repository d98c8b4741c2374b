"""Whose rows are wanted here: one data rank's in a worker of a mesh, the global batch elsewhere."""

from __future__ import annotations

import os

from twinkle_data.order.steps import DataShard
from twinkle_mesh import DeviceMesh, current_rank
from twinkle_remote import current_worker
from twinkle_remote.backends.support import active


def mesh_here(device_mesh: DeviceMesh | None) -> DeviceMesh | None:
    """The mesh over whose data ranks batches are divided: under a launcher, one of all its processes.

    Within a session a program without a mesh works on global batches in every process, and calls of components divide
    them.

    Raises:
        ValueError: The mesh has not as many ranks as the launcher has processes.
    """
    session = active()
    world = _launched()
    if world == 1 or current_worker().rank is not None or (session is not None and session.mode != "local"):
        return device_mesh
    if device_mesh is None:
        return DeviceMesh.from_sizes(dp_size=world) if session is None else None
    if device_mesh.world_size != world:
        raise ValueError(
            f"device_mesh has {device_mesh.world_size} ranks and the launcher started WORLD_SIZE={world} processes: "
            f"some rows would go to none of them, or to several. Pass a mesh of {world} ranks, leave device_mesh= out "
            f"to divide over all processes, or start {device_mesh.world_size} processes"
        )
    return device_mesh


def _launched() -> int:
    """Number of processes that a launcher started; 1 without one, and in a block that stands for some rank."""
    if current_rank() is not None or "RANK" not in os.environ:
        return 1
    return int(os.environ.get("WORLD_SIZE", "1"))


def shard_here(device_mesh: DeviceMesh | None) -> DataShard:
    """The part of each batch that the running code takes.

    A worker, or a process that a launcher gave its RANK, takes its data rank's rows. The driver takes the
    global batch, of which a dispatch will give each data rank its slice.
    """
    if device_mesh is None:
        return DataShard()
    world = device_mesh.data_world_size
    if current_rank() is None and "RANK" not in os.environ:
        return DataShard(world)
    context = current_worker()
    if context.rank is not None and context.world_size == 1 < device_mesh.world_size:
        # One process stands for the whole component, as in "local" mode.
        return DataShard(world)
    return DataShard(world, device_mesh.data_rank())


def shards_of(device_mesh: DeviceMesh | None) -> list[DataShard]:
    """Every data rank's part, in data order."""
    world = 1 if device_mesh is None else device_mesh.data_world_size
    return [DataShard(world, data_rank) for data_rank in range(world)]
