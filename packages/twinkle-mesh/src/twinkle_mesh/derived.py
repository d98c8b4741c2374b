"""Meshes with the attributes of another mesh."""

from __future__ import annotations

from .layout.data_dims import DATA_DIMS, SAME_DATA, follow_names
from .layout.data_layout import DataLayout
from .rules.checks import check_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypeVar

    from .data_parallel import DataParallel
    from .layout.layout import Layout
    from .named_dims import Views
    from .nodes import Nodes

    Mesh = TypeVar("Mesh", bound=DataParallel)


def rebuilt(
    mesh: Mesh,
    layout: Layout,
    names: tuple[str, ...],
    data: DataLayout | tuple[str, ...],
    *,
    views: Views,
    ulysses: int | None = None,
    fresh: Sequence[str] = (),
    splits: bool = True,
    nodes: Nodes | None = None,
) -> Mesh:
    """Build a mesh with those attributes of `mesh` whose dims the new mesh has.

    Args:
        mesh: The mesh to take attributes from.
        layout: The ranks of the new one.
        names: The dims of the new one.
        data: The position in data order of each coordinate, or the dims over which they are row-major.
        views: The views of the new one.
        ulysses: The ulysses size of the new one; that of `mesh` when None.
        fresh: Names that dims get by this operation.
        splits: Whether a dim splits the data once it has the name of a data dim.
        nodes: The nodes of the new one; those of `mesh` when None.
    """
    peers = mesh.ulysses_size if ulysses is None else ulysses
    known = [name for name in fresh if name in SAME_DATA or (splits and name in DATA_DIMS)]
    if known:
        assert isinstance(data, DataLayout)
        check_names(names)
        before = data.count // peers
        data, peers = follow_names(data, peers, names, known, splits=splits)
        if data.count // peers < before:
            _warn_of_lost_data(fresh, before, data.count // peers)
    sizes = dict(zip(names, layout.shape, strict=True))
    pp, tp = sizes.get("pp", 1), sizes.get("tp", 1)
    same_stage = layout.size // pp == mesh.world_size // mesh.pp_size
    order = mesh.expert_order
    experts = same_stage and (mesh.ep_size > 1 or mesh._etp is not None)
    return type(mesh)(
        layout,
        names,
        device_type=mesh.device_type,
        ulysses_size=peers,
        ep_size=mesh.ep_size if experts else 1,
        etp_size=mesh.etp_size if experts else None,
        vpp_size=mesh.vpp_size if pp == mesh.pp_size else 1,
        sequence_parallel=mesh.sequence_parallel and tp == mesh.tp_size,
        expert_order=order if same_stage and len(mesh._large_expert_dims(order)) > 1 else None,
        views=views,
        data_dims=data if isinstance(data, tuple) else None,
        data_layout=data if isinstance(data, DataLayout) else None,
        nodes=nodes or mesh.nodes,
    )


def selected(mesh: Mesh, parts: Mapping[str, tuple[int, ...]], coords: Sequence[int]) -> Mesh:
    """Build the mesh of some dims, with all others fixed at coordinates.

    Args:
        mesh: The mesh that the new one is a part of.
        parts: The dims of the new mesh, each with the dims of `mesh` that it joins.
        coords: A coordinate in every dim of `mesh`.
    """
    flat = [dim for part in parts.values() for dim in part]
    gone = [dim for dim in range(len(mesh.shape)) if dim not in flat]
    layout = mesh._layout.select(flat, coords)
    if mesh.ulysses_size == 1 and mesh._data_layout is None and len(flat) == len(parts):
        names = tuple([name for name in mesh.data_dims if name in parts])
        return rebuilt(mesh, layout, tuple(parts), names, views=views_within(mesh, parts))
    data, ulysses = mesh._data_by_coordinate().without(gone, mesh.ulysses_size, coords)
    data = data.select(flat, [0] * len(mesh.shape))
    joined = [name for name, part in parts.items() if len(part) > 1]
    if joined:
        starts = [sum(map(len, list(parts.values())[:count])) for count in range(len(parts))]
        runs = [range(start, start + len(part)) for start, part in zip(starts, parts.values(), strict=True)]
        layout, data = layout.flattened(runs), data.flattened(runs)
    return rebuilt(
        mesh,
        layout,
        tuple(parts),
        data,
        ulysses=ulysses,
        views=views_within(mesh, parts),
        fresh=[name for name in joined if name in SAME_DATA],
    )


def views_renamed(mesh: DataParallel, swap: Mapping[str, tuple[str, ...]]) -> Views:
    """Return the views after some dims were replaced by others."""

    def exchange(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple([new for old in names for new in swap.get(old, (old,))])

    return tuple([(view, exchange(parts)) for view, parts in mesh.views])


def views_within(mesh: DataParallel, parts: Mapping[str, tuple[int, ...]]) -> Views:
    """Return the views whose dims all stay as they are."""
    stay = {name for name, part in parts.items() if [mesh.dim_names[dim] for dim in part] == [name]}
    return tuple([(view, dims) for view, dims in mesh.views if view not in parts and stay.issuperset(dims)])


def _warn_of_lost_data(fresh: Sequence[str], before: int, after: int) -> None:
    import warnings

    taken = " and ".join([name for name in fresh if name in SAME_DATA])
    message = (
        f"ranks along {taken} see the same samples: data_world_size={before} becomes {after}; "
        "another name for the dim would keep their samples apart"
    )
    warnings.warn(message, stacklevel=4)
