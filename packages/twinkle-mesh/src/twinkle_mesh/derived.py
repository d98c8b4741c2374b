"""Meshes with the attributes of another mesh."""

from __future__ import annotations

from itertools import product as coordinates

from .layout.data_dims import DATA_DIMS, SAME_DATA, follow_names
from .layout.data_layout import DataLayout
from .layout.layout import Layout
from .rules.checks import check_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, TypeVar

    from .data_parallel import DataParallel
    from .named_dims import Views
    from .nodes import Nodes

    Mesh = TypeVar("Mesh", bound=DataParallel)
    Renamed = tuple[DataParallel, Mapping[str, str]]

_set = object.__setattr__


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
    renamed: Renamed | None = None,
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
        renamed: The mesh that `mesh` was before its dims were renamed, and the name there of each dim of the new one.
    """
    if renamed is None and set(names) == set(mesh.dim_names):
        renamed = mesh._renamed
    peers = mesh.ulysses_size if ulysses is None else ulysses
    known = [name for name in fresh if name in SAME_DATA or (splits and name in DATA_DIMS)]
    if known:
        assert isinstance(data, DataLayout)
        check_names(names)
        before = data.count // peers
        data, peers = follow_names(data, peers, names, known, splits=splits)
        if data.count // peers < before:
            _warn_of_lost_data(fresh, before, data.count // peers)
    made = type(mesh)(
        layout,
        names,
        device_type=mesh.device_type,
        ulysses_size=peers,
        **_traits(*(renamed or (mesh, {})), layout, names),
        views=views,
        data_dims=data if isinstance(data, tuple) else None,
        data_layout=data if isinstance(data, DataLayout) else None,
        nodes=nodes or mesh.nodes,
    )
    _set(made, "_renamed", renamed)
    _set(made, "_parts_of", mesh._parts_of)
    return made


def _traits(begun: DataParallel, was: Mapping[str, str], layout: Layout, names: Sequence[str]) -> dict[str, Any]:
    """Return the attributes of pp, tp and experts that a mesh derived from `begun` keeps.

    Args:
        begun: The mesh whose attributes they are.
        was: The name there of each dim that was renamed.
        layout: The ranks of the new mesh.
        names: Its dims.
    """
    # A dim has the attributes of its name only if it had that name when they were given.
    sizes = {name: size for name, size in zip(names, layout.shape, strict=True) if was.get(name, name) == name}
    pp, tp = sizes.get("pp", 1), sizes.get("tp", 1)
    same_stage = layout.size // pp == begun.world_size // begun.pp_size
    order = begun.expert_order
    experts = same_stage and (begun.ep_size > 1 or begun._etp is not None)
    return {
        "ep_size": begun.ep_size if experts else 1,
        "etp_size": begun.etp_size if experts else None,
        "vpp_size": begun.vpp_size if pp == begun.pp_size else 1,
        "sequence_parallel": begun.sequence_parallel and tp == begun.tp_size,
        "expert_order": order if same_stage and len(begun._large_expert_dims(order)) > 1 else None,
    }


def selected(mesh: Mesh, parts: Mapping[str, tuple[int, ...]], coords: Sequence[int]) -> Mesh:
    """Build the mesh of some dims, with all others fixed at coordinates.

    Args:
        mesh: The mesh that the new one is a part of.
        parts: The dims of the new mesh, each with the dims of `mesh` that it joins.
        coords: A coordinate in every dim of `mesh`.
    """
    flat = [dim for part in parts.values() for dim in part]
    gone = [dim for dim in range(len(mesh.shape)) if dim not in flat]
    part = _selected(mesh, parts, coords, flat, gone)
    if any(mesh.shape[dim] > 1 for dim in gone):
        _set(part, "_parts_of", ((mesh._layout, tuple(gone)), *mesh._parts_of))
    return part


def _selected(
    mesh: Mesh, parts: Mapping[str, tuple[int, ...]], coords: Sequence[int], flat: Sequence[int], gone: Sequence[int]
) -> Mesh:
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


def siblings(mesh: Mesh) -> tuple[Mesh, ...]:
    """Return the parts that other ranks have by the operations that made a mesh, itself too, by first rank."""
    if not mesh._parts_of:
        return (mesh,)
    held = [list(mesh.ranks)]
    for layout, gone in mesh._parts_of:
        held = [other for ranks in held for other in _parallel(layout, gone, ranks)]
    data = mesh._data_by_coordinate()
    return tuple(
        [
            rebuilt(mesh, Layout.of_ranks(ranks, mesh.shape), mesh.dim_names, data, views=mesh.views)
            for ranks in sorted(held)
        ]
    )


def _parallel(layout: Layout, gone: Sequence[int], ranks: Sequence[int]) -> list[list[int]]:
    """Return ranks, and those at the same coordinates but for the dims that are gone."""
    found: list[list[int]] = []
    coords = [layout.coords(rank) or [] for rank in ranks]
    for place in coordinates(*(range(layout.shape[dim]) for dim in gone)):
        fixed = dict(zip(gone, place, strict=True))
        found.append([layout.rank([fixed.get(dim, own) for dim, own in enumerate(each)]) for each in coords])
    return found


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
