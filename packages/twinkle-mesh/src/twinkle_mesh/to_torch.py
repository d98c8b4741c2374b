"""Torch's mesh of a mesh. Short: nothing else here imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh

    from .mesh import DeviceMesh


def to_torch(mesh: DeviceMesh) -> TorchDeviceMesh:
    """Build torch's mesh of all ranks of the default process group, with the views as flattened dims.

    All ranks call this, for their meshes in one order: torch makes the groups of all dims in it, on every rank in the
    same order, and a rank that stays away keeps the others waiting until the group's timeout. Each call makes groups
    anew, so it may follow the end of a process group. A mesh of "cuda" is one of "cpu" where torch has no CUDA.

    Raises:
        ValueError: Without a default process group, or when its ranks are not the mesh's. For groups whose ranks do not
            ascend: torch sorts the ranks of a group, so its collectives would take another order than the mesh.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh

    if not dist.is_initialized():
        raise ValueError("to_torch needs torch's default process group; torch.distributed.init_process_group makes it")
    ranks = mesh.ranks
    if sorted(ranks) != list(range(dist.get_world_size())):
        raise ValueError(
            f"torch's process group has {dist.get_world_size()} ranks, and the mesh is {mesh!r}: convert the whole "
            'mesh on every rank, and slice torch\'s, as in mesh.to_torch()["dp"]'
        )
    for name in (*mesh.dim_names, *dict(mesh.views)):
        if any(group != sorted(group) for group in mesh.groups(name)):
            raise ValueError(
                f"the ranks along {name} do not ascend, and torch sorts those of a group; use ascending ones"
            )
    has_device = mesh.device_type != "cuda" or torch.cuda.is_available() or dist.get_backend() == "fake"
    kind = mesh.device_type if has_device else "cpu"
    built = TorchDeviceMesh(kind, torch.tensor(ranks).view(mesh.shape), mesh_dim_names=mesh.dim_names)
    for name, dims in mesh.views:
        built[dims]._flatten(name)  # torch has no public spelling; its own docs show this one
    return built
