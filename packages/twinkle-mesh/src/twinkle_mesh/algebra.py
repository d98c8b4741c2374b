"""Operations that make a mesh from a mesh: the implementation of methods of `DeviceMesh`."""

from __future__ import annotations

from itertools import product as coordinates

from .layout.data_dims import DATA_DIMS, SAME_DATA, follow_names
from .layout.data_layout import DataLayout
from .layout.layout import Layout
from .rules.checks import check_names
from .rules.order import large_dims
from .rules.sizes import fill_sizes
from .value import TRAITS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, TypeVar

    from .data_parallel import DataParallel
    from .nodes import Nodes
    from .value import Dims, Views

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
        "expert_order": order if same_stage and len(large_dims(order, begun.expert_sizes)) > 1 else None,
    }


def submesh(mesh: Mesh, dims: Dims, rank: int | None = None) -> Mesh:
    """Return the mesh of `dims` that holds a rank; see `DeviceMesh.submesh`."""
    names = check_names((dims,) if isinstance(dims, str) else dims)
    parts = {name: mesh._parts(name) for name in names}
    flat = [dim for part in parts.values() for dim in part]
    if len(set(flat)) != len(flat):
        raise ValueError(f"dims={names} name a dim both as itself and in a view; each dim must occur once")
    return selected(mesh, parts, mesh._coords(rank))


def flatten(mesh: Mesh, dims: Dims | None, name: str | None) -> Mesh:
    """Join dims into one; see `DeviceMesh.flatten`."""
    joined = check_names(mesh.dim_names if dims is None else (dims,) if isinstance(dims, str) else dims)
    if not joined:
        raise ValueError(f"flatten needs at least one dim; the dims are {mesh._sizes()}")
    new = "_".join(joined) if name is None else name
    first = min(mesh._dim(dim) for dim in joined)
    parts: dict[str, tuple[int, ...]] = {}
    for dim, old in enumerate(mesh.dim_names):
        if dim == first:
            parts[new] = tuple([mesh._dim(each) for each in joined])
        elif old not in joined:
            if old == new:
                raise ValueError(f"name={new!r} is the name of a dim that stays; dim names must differ")
            parts[old] = (dim,)
    runs = list(parts.values())
    return rebuilt(
        mesh,
        mesh.layout.flattened(runs),
        tuple(parts),
        mesh.data_positions.flattened(runs),
        views=_views_within(mesh, parts),
        fresh=[] if joined == (new,) else [new],
        splits=False,
    )


def unflatten(mesh: Mesh, dim: str, sizes: Mapping[str, int]) -> Mesh:
    """Cut a dim into several; see `DeviceMesh.unflatten`."""
    place = mesh._dim(dim)
    if not hasattr(sizes, "items"):
        raise TypeError(f'unflatten takes sizes by name, such as {{"dp_replicate": 2, "dp_shard": -1}}, got {sizes!r}')
    new = fill_sizes(dim, mesh.shape[place], sizes)
    pieces = list(new.values())
    return rebuilt(
        mesh,
        mesh.layout.unflattened(place, pieces),
        (*mesh.dim_names[:place], *new, *mesh.dim_names[place + 1 :]),
        mesh.data_positions.unflattened(place, pieces),
        views=_views_renamed(mesh, {dim: tuple(new)}),
        fresh=[name for name in new if name != dim or len(pieces) > 1],
    )


def rename(mesh: Mesh, new: Mapping[str, str]) -> Mesh:
    """Give dims new names; see `DeviceMesh.rename`."""
    for old in new:
        mesh._dim(old)
    begun, was = mesh._renamed or (mesh, {name: name for name in mesh.dim_names})
    now = tuple([new.get(name, name) for name in mesh.dim_names])
    return rebuilt(
        mesh,
        mesh.layout,
        now,
        mesh.data_positions,
        views=_views_renamed(mesh, {old: (name,) for old, name in new.items()}),
        fresh=[name for old, name in new.items() if old != name],
        renamed=(begun, {new.get(name, name): old for name, old in was.items()}),
    )


def transpose(mesh: Mesh, dims: Sequence[str]) -> Mesh:
    """Reorder the dims; see `DeviceMesh.transpose`."""
    wanted = check_names(dims) or mesh.dim_names[::-1]
    indices = [mesh._dim(name) for name in wanted]
    if len(indices) != len(mesh.dim_names):
        missing = [name for name in mesh.dim_names if name not in wanted]
        raise ValueError(f"transpose{wanted} leaves out {missing}; name every dim once")
    origin = [0] * len(indices)
    data = mesh.data_positions.select(indices, origin)
    return rebuilt(mesh, mesh.layout.select(indices, origin), wanted, data, views=mesh.views)


def concat(meshes: Sequence[Mesh], dim: str) -> Mesh:
    """Put meshes one after the other; see `DeviceMesh.concat`."""
    first, others = meshes[0], tuple(meshes[1:])
    strange = [other for other in others if not isinstance(other, type(first))]
    if strange:
        raise TypeError(f"concat takes meshes, got {strange[0]!r}")
    for other in others:
        _check_alike(first, other)
    layout = Layout.stacked([mesh.layout for mesh in meshes])
    if layout is None:
        shared = next(rank for mesh in meshes for rank in mesh.ranks if sum(rank in each for each in meshes) > 1)
        raise ValueError(f"concat needs disjoint ranks, but rank {shared} is in several of the {len(meshes)} meshes")
    names = first.dim_names
    at = names.index(dim) if dim in names else None
    held = [mesh.data_positions for mesh in meshes]
    by_name = dim in DATA_DIMS and (at is None or first.shape[at] == 1)
    splits = by_name or (at is not None and held[0].step(at) > 0)
    if dim in SAME_DATA and any(data.key != held[0].key for data in held):
        raise ValueError(
            f"concat along {dim} needs meshes with the same data ranks, not {first!r} and {tuple(others)!r}"
        )
    data = DataLayout.concatenated(held, None if by_name else at, splits=splits, ulysses=first.ulysses_size)
    if at is None:
        names = (dim, *names)
    else:
        runs = [[0, part + 1] if part == at else [part + 1] for part in range(len(names))]
        layout, data = layout.flattened(runs), data.flattened(runs)
    grown = rebuilt(first, layout, names, data, views=first.views, fresh=[dim] if by_name else [])
    _set(grown, "_parts_of", ())
    return grown


def with_views(mesh: Mesh, views: Mapping[str, Dims]) -> Mesh:
    """Add names for flattened dims; see `DeviceMesh.with_views`."""
    more = tuple([(name, (dims,) if isinstance(dims, str) else tuple(dims)) for name, dims in views.items()])
    return rebuilt(mesh, mesh.layout, mesh.dim_names, mesh.data_positions, views=(*mesh.views, *more))


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
        _set(part, "_parts_of", ((mesh.layout, tuple(gone)), *mesh._parts_of))
    return part


def _selected(
    mesh: Mesh, parts: Mapping[str, tuple[int, ...]], coords: Sequence[int], flat: Sequence[int], gone: Sequence[int]
) -> Mesh:
    layout = mesh.layout.select(flat, coords)
    if mesh.ulysses_size == 1 and mesh.data_layout is None and len(flat) == len(parts):
        names = tuple([name for name in mesh.data_dims if name in parts])
        return rebuilt(mesh, layout, tuple(parts), names, views=_views_within(mesh, parts))
    data, ulysses = mesh.data_positions.without(gone, mesh.ulysses_size, coords)
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
        views=_views_within(mesh, parts),
        fresh=[name for name in joined if name in SAME_DATA],
    )


def siblings(mesh: Mesh) -> tuple[Mesh, ...]:
    """Return the parts that other ranks have by the operations that made a mesh, itself too, by first rank."""
    if not mesh._parts_of:
        return (mesh,)
    held = [list(mesh.ranks)]
    for layout, gone in mesh._parts_of:
        held = [other for ranks in held for other in _parallel(layout, gone, ranks)]
    data = mesh.data_positions
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


def _views_renamed(mesh: DataParallel, swap: Mapping[str, tuple[str, ...]]) -> Views:
    """Return the views after some dims were replaced by others."""

    def exchange(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple([new for old in names for new in swap.get(old, (old,))])

    return tuple([(view, exchange(parts)) for view, parts in mesh.views])


def _views_within(mesh: DataParallel, parts: Mapping[str, tuple[int, ...]]) -> Views:
    """Return the views whose dims all stay as they are."""
    stay = {name for name, part in parts.items() if [mesh.dim_names[dim] for dim in part] == [name]}
    return tuple([(view, dims) for view, dims in mesh.views if view not in parts and stay.issuperset(dims)])


def _check_alike(mesh: DataParallel, other: DataParallel) -> None:
    """Raise ValueError unless the attributes of two meshes differ in their ranks only."""
    differ = [name for name in ("shape", *TRAITS) if getattr(mesh, name) != getattr(other, name)]
    orders = [large_dims(each.expert_order, each.expert_sizes) for each in (mesh, other)]
    if not differ and mesh._expert_order != other._expert_order and orders[0] != orders[1]:
        differ = ["expert_order"]
    if differ:
        name = "etp_size" if differ[0] == "_etp" else differ[0]
        found = f"{name} is {getattr(mesh, name)!r} in {mesh!r} and {getattr(other, name)!r} in {other!r}"
        raise ValueError(f"concat needs meshes that differ in their ranks only, but {found}")


def _warn_of_lost_data(fresh: Sequence[str], before: int, after: int) -> None:
    import warnings
    from inspect import currentframe

    level, frame = 0, currentframe()
    while frame is not None and frame.f_globals["__name__"].startswith("twinkle_mesh."):
        level, frame = level + 1, frame.f_back
    taken = " and ".join([name for name in fresh if name in SAME_DATA])
    message = (
        f"ranks along {taken} see the same samples: data_world_size={before} becomes {after}; "
        "another name for the dim would keep their samples apart"
    )
    warnings.warn(message, stacklevel=level + 1)
