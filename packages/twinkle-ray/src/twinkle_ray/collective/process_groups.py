"""The meshes of a collective and their process groups, which every rank creates in one order."""

from __future__ import annotations

from hashlib import sha256
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import PrefixStore, default_pg_timeout
from torch.distributed.rendezvous import rendezvous

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from torch.distributed import ProcessGroup

    from twinkle_mesh import DeviceMesh as MeshValue

PARALLEL = ("dp_replicate", "dp_shard", "tp")
PHYSICAL = ("nodes", "local_ranks")
BACKEND_OF_GPUS = "cpu:gloo,cuda:nccl"
_opened = count()  # the same number on every rank: all open the default group equally often


class Meshes(NamedTuple):
    """The meshes of a collective.

    Attributes:
        parallel_mesh: 3D mesh with dims (dp_replicate, dp_shard, tp).
        physical_mesh: 2D mesh with dims (nodes, local_ranks).
    """

    parallel_mesh: DeviceMesh
    physical_mesh: DeviceMesh


def parallel_shape(
    world_size: int, local_world_size: int, tp_size: int, sharding_world_size: int | None
) -> tuple[int, int, int]:
    """Sizes of (dp_replicate, dp_shard, tp); without a size, dp_shard fills a node.

    Raises:
        ValueError: With the rule, the values and what to use.
    """
    for name, value in (
        ("world_size", world_size),
        ("local_world_size", local_world_size),
        ("tp_size", tp_size),
        ("sharding_world_size", 1 if sharding_world_size is None else sharding_world_size),
    ):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    _divides("local_world_size", local_world_size, "world_size", world_size)
    _divides("tp_size", tp_size, "world_size", world_size)
    _divides("tp_size", tp_size, "local_world_size", local_world_size)
    shard = local_world_size // tp_size if sharding_world_size is None else sharding_world_size
    if world_size % (shard * tp_size):
        fitting = ", ".join(str(size) for size in _divisors(world_size // tp_size))
        raise ValueError(
            f"sharding_world_size={shard} times tp_size={tp_size} does not divide world_size={world_size}; "
            f"use a sharding_world_size of {fitting}"
        )
    return world_size // (shard * tp_size), shard, tp_size


def check_local_rank(rank: int, local_rank: int, local_world_size: int) -> None:
    """Check that a local rank fits the rank.

    Raises:
        ValueError: With the rule, the values and what to use.
    """
    if not 0 <= local_rank < local_world_size:
        raise ValueError(f"local_rank={local_rank} is not in [0, local_world_size - 1] = [0, {local_world_size - 1}]")
    if rank % local_world_size != local_rank:
        raise ValueError(
            f"rank={rank} cannot be local_rank={local_rank} where ranks count node by node, "
            f"{local_world_size} on each: use local_rank={rank % local_world_size}"
        )


def open_default_group(rank: int, world_size: int, timeout: timedelta | None, *, on_gpus: bool) -> ProcessGroup:
    """Initialise the default group from the environment: with NCCL for tensors of GPUs, and Gloo for those of hosts.

    No device is bound to it: torch would then split NCCL's communicator for each further group on every rank, also for
    groups of one rank and those that nobody uses. A group's communicator is made at its first operation.
    """
    limit = timeout or default_pg_timeout
    store, _, _ = next(rendezvous("env://", rank, world_size, timeout=limit))
    store.set_timeout(limit)
    dist.init_process_group(
        backend=BACKEND_OF_GPUS if on_gpus else "gloo",
        # the store outlives a group, so a later group would read the addresses of an earlier one
        store=PrefixStore(f"twinkle/{next(_opened)}", store),
        rank=rank,
        world_size=world_size,
        timeout=timeout,
    )
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def build_mesh(
    ranks: Sequence[int],
    shape: Sequence[int],
    names: Sequence[str],
    *,
    device_type: str,
    timeout: timedelta | None,
    created: list[ProcessGroup],
) -> DeviceMesh:
    """Torch's mesh of some ranks of the default group, in row-major order.

    Every rank of the default group must call this, and creates the groups of all dims in the same order. If only its
    members create a group, it hangs or connects wrong peers.

    Args:
        ranks: One for each element of the shape.
        shape: Sizes of the dims, outermost first.
        names: Names of the dims.
        device_type: "cuda" or "cpu".
        timeout: Time limit of the groups.
        created: The groups of this rank are appended here, for `close`.
    """
    layout = torch.tensor(list(ranks), dtype=torch.int).reshape(tuple(shape))
    mine = [
        create_groups(dim_groups(layout, [dim]), timeout=timeout, name=names[dim], created=created)
        for dim in range(layout.ndim)
    ]
    groups = [group for group in mine if group is not None]
    assert len(groups) == layout.ndim, "this rank is in the mesh"
    return DeviceMesh.from_group(groups, device_type, layout, mesh_dim_names=tuple(names))


def dim_groups(layout: torch.Tensor, dims: Sequence[int]) -> list[list[int]]:
    """The groups of ranks that differ in `dims` only; one for each coordinate in the other dims, row-major."""
    others = [dim for dim in range(layout.ndim) if dim not in dims]
    rows = layout.permute(*others, *dims).reshape(-1, *(layout.shape[dim] for dim in dims))
    return [[int(rank) for rank in row.flatten()] for row in rows]


def groups_over(mesh: MeshValue | DeviceMesh, dims: Sequence[str]) -> list[list[int]]:
    """The groups of ranks that differ only in some dims of a twinkle or a torch mesh.

    Raises:
        ValueError: The mesh has no such dim.
    """
    names = tuple((mesh.mesh_dim_names if isinstance(mesh, DeviceMesh) else mesh.dim_names) or ())
    unknown = [dim for dim in dims if dim not in names]
    if unknown or not dims:
        raise ValueError(f"the mesh has no dim {unknown}: its dims are {list(names)}")
    if isinstance(mesh, DeviceMesh):
        return dim_groups(mesh.mesh, [names.index(dim) for dim in dims])
    world = dist.get_world_size()
    # Ranks that each have their own submesh make the groups of all of them.
    parts = [part for part in mesh.siblings if max(part.ranks) < world]
    layouts = [torch.tensor(list(part.ranks), dtype=torch.int).reshape(tuple(part.shape)) for part in parts]
    return [group for layout in layouts for group in dim_groups(layout, [names.index(dim) for dim in dims])]


def create_groups(
    groups: Sequence[Sequence[int]], *, timeout: timedelta | None, name: str, created: list[ProcessGroup]
) -> ProcessGroup | None:
    """Create all groups; every rank of the default group calls this. Returns the group of this rank, or None.

    Raises:
        ValueError: On every rank, where ranks would create other groups.
    """
    _compare(groups, name)
    own = dist.get_rank()
    found: ProcessGroup | None = None
    for ranks in groups:
        group = dist.new_group(list(ranks), timeout=timeout, group_desc=f"twinkle.{name}", sort_ranks=False)
        if own in ranks:
            created.append(group)
            found = group
    return found


def _compare(groups: Sequence[Sequence[int]], name: str) -> None:
    """Compare the groups that all ranks are about to create: with others they would wait, or connect wrong peers."""
    if dist.get_world_size() == 1 or dist.get_backend() == "fake":  # a fake group has no peers
        return
    digest = sha256(repr([list(ranks) for ranks in groups]).encode()).digest()
    own = torch.tensor(list(digest), dtype=torch.uint8)
    if "gloo" not in dist.get_backend_config():
        own = own.to(torch.accelerator.current_accelerator())
    gathered = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, own)
    other = next((rank for rank, values in enumerate(gathered) if not torch.equal(values, gathered[0])), None)
    if other is not None:
        raise ValueError(
            f"ranks 0 and {other} would create different groups over {name}, and this rank {list(groups)[:4]}: use the "
            "whole mesh on every rank, or submeshes of one mesh by the same dims"
        )


def _divides(name: str, value: int, whole_name: str, whole: int) -> None:
    if whole % value:
        fitting = ", ".join(str(size) for size in _divisors(whole))
        raise ValueError(f"{name}={value} does not divide {whole_name}={whole}; use {fitting}")


def _divisors(whole: int) -> list[int]:
    return [size for size in range(1, whole + 1) if whole % size == 0]
