"""The rows that this process takes: one data rank's in a worker of a mesh, the global batch elsewhere."""

from __future__ import annotations

import os

from twinkle_data.order.steps import DataShard
from twinkle_mesh import DeviceMesh, current_rank
from twinkle_remote import current_worker
from twinkle_remote.backends.support import active


def mesh_here(device_mesh: DeviceMesh | None) -> DeviceMesh | None:
    """The mesh that divides batches; under a launcher and without a mesh, one of all its processes.

    In a session, a program without a mesh gets global batches in every process, and the calls of components divide
    them.

    Raises:
        ValueError: The mesh and the launcher have different numbers of processes.
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
    """Number of processes that a launcher started; 1 without a launcher, and inside of `use_rank`."""
    if current_rank() is not None or "RANK" not in os.environ:
        return 1
    return int(os.environ.get("WORLD_SIZE", "1"))


def shard_here(device_mesh: DeviceMesh | None) -> DataShard:
    """The shard of each batch that this process takes.

    A worker, or a process with RANK from a launcher, takes its data rank's rows. The driver takes the global batch,
    and a dispatch sends each data rank its slice.
    """
    if device_mesh is None:
        return DataShard()
    world = device_mesh.data_world_size
    if current_rank() is None and "RANK" not in os.environ:
        return DataShard(world)
    context = current_worker()
    if context.rank is not None and context.world_size == 1 < device_mesh.world_size:
        # In "local" mode one process is the whole component.
        return DataShard(world)
    return DataShard(world, device_mesh.data_rank())


def shards_of(device_mesh: DeviceMesh | None) -> list[DataShard]:
    """The shard of every data rank, in data order."""
    world = 1 if device_mesh is None else device_mesh.data_world_size
    return [DataShard(world, data_rank) for data_rank in range(world)]
