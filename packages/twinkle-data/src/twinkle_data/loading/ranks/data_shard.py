"""The rows that the running code takes: one data rank's in a worker or a launched process, else the global batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinkle_data.order.steps import DataShard
from twinkle_data.sources.kinds import is_kind
from twinkle_mesh import DeviceMesh
from twinkle_remote import UnknownWorkerError
from twinkle_remote.backends.support import active, has_own_context

if TYPE_CHECKING:
    from twinkle_remote import Place, WorkerContext


def check_mesh_type(device_mesh: object) -> None:
    """Refuse a mesh that is none of ours.

    Raises:
        TypeError: It is another object, such as torch's mesh.
    """
    if device_mesh is None or isinstance(device_mesh, DeviceMesh):
        return
    if is_kind(device_mesh, "torch", "DeviceMesh"):
        raise TypeError(
            "device_mesh= is torch's DeviceMesh, whose names do not say here which dims divide rows: pass "
            "DeviceMesh.from_torch(mesh)"
        )
    raise TypeError(
        f"device_mesh={device_mesh!r} is a {type(device_mesh).__name__}; use DeviceMesh.from_sizes, from_ranks or "
        "from_torch"
    )


def mesh_here(device_mesh: DeviceMesh | None, place: Place) -> DeviceMesh | None:
    """The mesh that divides batches: the given one, the component's, or one of all launched processes.

    In a session, a program without a mesh gets global batches in every process, and the calls of components divide
    them.

    Raises:
        ValueError: The mesh and the component, or the processes, have different numbers of ranks.
        UnknownWorkerError: A helper thread of a worker makes a loader without a mesh.
    """
    if place.worker is not None:
        return _mesh_in_worker(device_mesh, place.worker)
    world, session = place.world_size, active()
    if world is None and device_mesh is None and session is None and place.rank:
        raise ValueError(
            f"{place.by} says that this is rank {place.rank}, and not of how many processes: each would read all rows. "
            "Set WORLD_SIZE (torchrun does), pass device_mesh=, or replicate=True for all rows on each rank"
        )
    if world is None or world == 1 or (session is not None and session.mode != "local"):
        return device_mesh
    if device_mesh is None:
        return DeviceMesh.from_sizes(dp_size=world) if session is None else None
    if device_mesh.world_size != world:
        raise ValueError(
            f"device_mesh has {device_mesh.world_size} ranks and {place.by} processes: "
            f"some rows would go to none of them, or to several. Pass a mesh of {world} ranks, leave device_mesh= out "
            f"to divide over all processes, or start {device_mesh.world_size} processes"
        )
    return device_mesh


def _mesh_in_worker(device_mesh: DeviceMesh | None, worker: WorkerContext) -> DeviceMesh | None:
    if device_mesh is None:
        if worker.alone or worker.world_size == 1:
            return None
        if not has_own_context():
            raise UnknownWorkerError(
                f"a loader without device_mesh= in a helper thread of a worker of group {worker.group!r}: nothing "
                "says which component it belongs to. Pass device_mesh=, make it in a method's own thread, or start "
                "the thread with contextvars.copy_context().run"
            )
        return worker.mesh or DeviceMesh.from_sizes(dp_size=worker.world_size)
    ranks = _size_of_group(worker)
    if ranks is not None and device_mesh.world_size != ranks:
        raise ValueError(
            f"device_mesh has {device_mesh.world_size} ranks and the loader is in a worker of group {worker.group!r}, "
            f"which has {ranks}: some rows would go to none of them, or to several. Pass a mesh of {ranks} ranks, or "
            "leave device_mesh= out to divide over the component's mesh"
        )
    return device_mesh


def _size_of_group(worker: WorkerContext) -> int | None:
    """Ranks of a worker's group; None where one process stands for a group whose size is not known."""
    if worker.world_size > 1:
        return worker.world_size
    session = active()
    if session is None or session.mode != "local":
        return 1
    group = session.groups.get(worker.group or "")
    return None if group is None else group.num_workers


def shard_here(device_mesh: DeviceMesh | None, place: Place) -> DataShard:
    """The shard of each batch that the code of a place takes.

    A worker, or one of several processes, takes its data rank's rows. The driver takes the global batch, and a
    dispatch sends each data rank its slice.

    Raises:
        ValueError: One worker alone would take its rows, and those of the others would go to none.
    """
    if device_mesh is None:
        return DataShard()
    world = device_mesh.data_world_size
    if place.worker is None:
        session = active()
        if place.alone or (place.by != "use_rank" and session is not None and session.mode != "local"):
            return DataShard(world)
    elif place.world_size == 1 < device_mesh.world_size:
        # In "local" mode one process is the whole component.
        return DataShard(world)
    elif place.alone and world > 1:
        raise ValueError(
            f'the first worker of group {place.worker.group!r} runs this alone (execute="first"): of {world} data '
            "ranks the rows of all others would go to none. Leave device_mesh= out, where the loader is made, or read "
            "it in a method that all workers run"
        )
    return DataShard(world, device_mesh.data_rank(place.rank))


def check_mesh(made_with: DeviceMesh | None, given: DeviceMesh | None, place: Place) -> None:
    """Raise where a loader was made in a place that divides batches otherwise than the one that reads it.

    Args:
        made_with: The mesh that divides its batches.
        given: Its own mesh, as `device_mesh=`.
        place: The place that reads it.
    """
    now = mesh_here(given, place)
    if now is not None and now != made_with:
        whose = f"worker {place.rank}" if place.worker is not None else f"process {place.rank}"
        raise ValueError(
            f"{whose} of {place.world_size} reads a loader that was made where batches are "
            f"{'not divided' if made_with is None else f'divided by {made_with!r}'}, and here {now!r} divides them: "
            "rows would be repeated or missing. Make the loader here (after init_process_group), pass device_mesh= "
            "where it is made, or replicate=True for all rows on each rank"
        )


def shards_of(device_mesh: DeviceMesh | None) -> list[DataShard]:
    """The shard of every data rank, in data order."""
    world = 1 if device_mesh is None else device_mesh.data_world_size
    return [DataShard(world, data_rank) for data_rank in range(world)]
