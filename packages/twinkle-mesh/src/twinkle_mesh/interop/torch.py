"""Meshes to and from `torch.distributed.DeviceMesh`.

torch is imported inside the functions, because the package does not need it otherwise.
"""

from __future__ import annotations

from hashlib import sha256

from twinkle_mesh.algebra import siblings, submesh, with_views
from twinkle_mesh.builders import from_ranks
from twinkle_mesh.rules.messages import preview

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, TypeVar

    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import (
        DeviceMesh as TorchDeviceMesh,
    )

    from twinkle_mesh.data_parallel import DataParallel
    from twinkle_mesh.value import Dims

    Mesh = TypeVar("Mesh", bound=DataParallel)

_VIEWS = {
    "dp": (("dp_replicate", "dp_shard"),),
    "dp_shard_cp": (("dp_shard", "cp"),),
    "dp_cp": (("dp_replicate", "dp_shard", "cp"), ("dp", "cp")),
    "batch": (("dp_replicate", "dp_shard"),),
    "loss": (("dp_replicate", "dp_shard", "cp"),),
    "fsdp": (("dp_shard", "cp"),),
}


class _GroupCache:
    """The groups and meshes over one default process group. They end with it.

    MeshValue:
        world: That group.
        groups: Groups by their ranks.
        meshes: torch's meshes by ours and its siblings.
        compared: The siblings of which all ranks have groups.
        talk: The group over which ranks compare their meshes; None before the first time.
    """

    def __init__(self, world: ProcessGroup) -> None:
        self.world = world
        self.groups: dict[tuple[int, ...], ProcessGroup | int | None] = {}
        self.meshes: dict[tuple[DataParallel, tuple[DataParallel, ...]], TorchDeviceMesh] = {}
        self.compared: set[tuple[DataParallel, ...]] = set()
        self.talk: ProcessGroup | int | None = None


_made: _GroupCache | None = None


def to_torch(mesh: DataParallel) -> TorchDeviceMesh:
    """Build torch's mesh over the default process group; see `DeviceMesh.to_torch`."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh

    world = dist.group.WORLD if dist.is_initialized() else None
    if world is None:
        raise ValueError("to_torch needs torch's default process group; torch.distributed.init_process_group makes it")
    if not mesh.dim_names:
        raise ValueError("to_torch needs a mesh of at least one dim, but this one has none")
    if mesh.layout.highest >= world.size():
        raise ValueError(
            f"the mesh's highest rank is {mesh.layout.highest}, but torch's world has {world.size()} ranks; "
            f"use a world of at least {mesh.layout.highest + 1}"
        )
    _check_order(mesh)

    global _made
    if _made is None or _made.world is not world:
        _made = _GroupCache(world)
    family = tuple([part for part in siblings(mesh) if part.layout.highest < world.size()])
    if (mesh, family) in _made.meshes:
        return _made.meshes[mesh, family]
    if family not in _made.compared:
        _compare(_made, family)
        _made.compared.add(family)
    groups = [_group(_made, family, dim) for dim in mesh.dim_names]
    flat_groups = [_group(_made, family, view) for view, _ in mesh.views]
    ranks = torch.tensor(list(mesh.ranks), dtype=torch.int).view(mesh.shape)
    if dist.get_rank() in mesh:
        mine = [group for group in groups if group is not None]
        result = TorchDeviceMesh.from_group(mine, mesh.device_type, mesh=ranks, mesh_dim_names=mesh.dim_names)
        for (name, dims), group in zip(mesh.views, flat_groups, strict=True):
            assert group is not None
            _add_flattened(result, name, dims, group)
    else:
        result = TorchDeviceMesh(mesh.device_type, ranks, mesh_dim_names=mesh.dim_names, _init_backend=False)
        # torch's constructor leaves it so on a rank that is not in the mesh.
        result._dim_group_names = []
    _made.meshes[mesh, family] = result
    return result


def from_torch(kind: type[Mesh], torch_mesh: TorchDeviceMesh, data_dims: Dims | None = None) -> Mesh:
    """Return the mesh with the ranks of torch's mesh; see `DeviceMesh.from_torch`."""
    if not torch_mesh.mesh_dim_names:
        raise ValueError("from_torch needs a mesh with names; mesh_dim_names= of torch's DeviceMesh gives them")
    ranks: object = torch_mesh.mesh.tolist()
    fields = {"device_type": torch_mesh.device_type, "data_dims": data_dims}
    mesh = from_ranks(kind, ranks, torch_mesh.mesh_dim_names, fields, stacklevel=4)
    # torch has no public list of the flattened dims; without this one the mesh has its dims alone.
    flattened: dict[str, TorchDeviceMesh] = getattr(torch_mesh, "_flatten_mapping", {})
    views = {name: _dims_of(mesh, name, flat.mesh.tolist()) for name, flat in flattened.items()}
    return with_views(mesh, views) if views else mesh


def _check_order(mesh: DataParallel) -> None:
    """Raise for groups whose ranks torch would sort, and for views that it would flatten in another order."""
    for view, dims in mesh.views:
        places = [mesh.dim_names.index(dim) for dim in dims]
        if places != sorted(places):
            ranks = submesh(mesh, view, mesh.ranks[0]).ranks
            raise ValueError(
                f"the ranks along {view} do not ascend ({preview(ranks)}): torch flattens dims in the order "
                f"of the mesh, which is {mesh.dim_names}, not in the order {dims}; use with_views in that order"
            )
    if not _keeps_order():
        for name in (*mesh.dim_names, *(view for view, _ in mesh.views)):
            for group in mesh.groups(name):
                if list(group) != sorted(group):
                    raise ValueError(
                        f"the ranks along {name} do not ascend ({preview(group)}), and this torch sorts the ranks of a "
                        "group, so its collectives would take another order than the mesh; use torch 2.12, or ranks "
                        "that ascend along each dim"
                    )


def _keeps_order() -> bool:
    """Tell whether torch keeps the order of a group's ranks. Before 2.12 it sorts them."""
    from inspect import signature

    import torch.distributed as dist

    return "sort_ranks" in signature(dist.new_group).parameters


_PRIVATE = ("_layout", "_rank_map", "_pg_registry", "_flatten_mapping")


def _add_flattened(mesh: TorchDeviceMesh, name: str, dims: tuple[str, ...], group: ProcessGroup) -> None:
    """Add a flattened dim to torch's mesh over an existing group.

    torch up to 2.13 has no public way. Its own `_flatten` makes another group: every rank has to take part in that, but
    a rank that is not in the mesh cannot call it.

    Raises:
        RuntimeError: This torch has other private members.
    """
    missing = [member for member in _PRIVATE if not hasattr(mesh, member)]
    if missing:
        raise RuntimeError(
            f"to_torch cannot add the flattened dim {name!r}: DeviceMesh of this torch has no {', '.join(missing)}; "
            "torch 2.12 has, and a mesh without views needs none"
        )
    layout = mesh[dims]._layout
    flat = type(mesh)(
        mesh.device_type,
        mesh_dim_names=(name,),
        _layout=_one_dim(layout),
        _rank_map=mesh._rank_map,
        _root_mesh=mesh,
        _init_backend=False,
    )
    flat._dim_group_names = [group.group_name]
    mesh._pg_registry[group.group_name] = group
    mesh._flatten_mapping[name] = flat


def _one_dim(layout: Any) -> Any:
    """Return torch's layout of several dims as that of one dim, which has all their ranks."""
    if hasattr(layout, "collapse"):  # since torch 2.13
        return type(layout)([layout.collapse()])
    merged = layout.coalesce()
    return merged.nest() if len(merged) > 1 else merged


def _compare(made: _GroupCache, family: Sequence[DataParallel]) -> None:
    """Compare the meshes of all ranks, before they make groups of them.

    Raises:
        ValueError: on every rank, where they differ.
    """
    import torch.distributed as dist

    if made.world.size() == 1 or dist.get_backend() == "fake":  # a fake group has no peers
        return
    if made.talk is None:
        # NCCL would need a device of its own on each rank.
        made.talk = made.world if "gloo" in dist.get_backend_config() else dist.new_group(backend="gloo")
    own = [(list(mesh.ranks), mesh.shape, mesh.dim_names, mesh.views, mesh.device_type) for mesh in family]
    described = sha256(repr(own).encode()).hexdigest(), preview([repr(mesh) for mesh in family])
    gathered: list[tuple[str, str]] = [("", "")] * made.world.size()
    dist.all_gather_object(gathered, described, group=made.talk)
    other = next((rank for rank, found in enumerate(gathered) if found[0] != gathered[0][0]), None)
    if other is not None:
        raise ValueError(
            "to_torch makes groups, which all ranks make together, but their meshes do not fit together: rank 0 has "
            f"{gathered[0][1]} and rank {other} {gathered[other][1]}; use the whole mesh on every rank, or submeshes "
            "of one mesh by the same dims"
        )


def _group(made: _GroupCache, family: Sequence[DataParallel], dim: str) -> ProcessGroup | None:
    """Make all groups of a dim or view, in one order on every rank, and return the group of this rank.

    Groups made by their members only are matched by the order of the calls: ranks that differ in it wait for ever.
    """
    import torch.distributed as dist

    mine: ProcessGroup | None = None
    here = dist.get_rank()
    for key in sorted([tuple(ranks) for mesh in family for ranks in mesh.groups(dim)]):
        if key not in made.groups:
            made.groups[key] = made.world if key == tuple(range(made.world.size())) else _new_group(list(key), dim)
        if here in key:
            found = made.groups[key]
            assert isinstance(found, dist.ProcessGroup)
            mine = found
    return mine


def _new_group(ranks: list[int], dim: str) -> ProcessGroup | int | None:
    import torch.distributed as dist

    made: ProcessGroup | int | None
    if ranks == sorted(ranks):
        made = dist.new_group(ranks, group_desc=f"mesh_{dim}")
    else:
        made = dist.new_group(ranks, group_desc=f"mesh_{dim}", sort_ranks=False)
    return made


def _dims_of(mesh: DataParallel, name: str, ranks: list[int]) -> tuple[str, ...]:
    """Return the dims that were flattened into `name`: the usual ones of that name if they fit, else the fewest."""
    from itertools import combinations

    fewest = [dims for count in range(1, len(mesh.dim_names) + 1) for dims in combinations(mesh.dim_names, count)]
    named = [dims for dims in fewest if "_".join(dims) == name]
    for dims in (*_VIEWS.get(name, ()), *named, *fewest):
        if all(map(mesh.has_dim, dims)) and list(submesh(mesh, dims, ranks[0]).ranks) == ranks:
            return dims
    raise ValueError(f"the flattened name {name!r} covers ranks ({preview(ranks)}), which no dims of {mesh!r} make up")
