"""Data dims: those of a mesh by their names, and those of a part of it."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .mesh import DeviceMesh


DATA_DIMS = ("dp_replicate", "replicate", "ddp", "dp", "data", "dp_shard", "shard", "fsdp")
"""Dims whose ranks get different rows, outermost in data order first."""
SAME_DATA = ("pp", "cp", "sp", "tp", "ep_shard", "ep", "etp")
"""Dims whose ranks get the same rows."""


def data_dims_by_name(sizes: Mapping[str, int]) -> list[str]:
    """Return the data dims of a mesh with dims of these sizes, outermost in data order first.

    Raises:
        ValueError: For a dim above size 1 whose name says nothing about its rows.
    """
    data = [name for name in DATA_DIMS if name in sizes]
    unknown = [name for name, size in sizes.items() if size > 1 and name not in (*DATA_DIMS, *SAME_DATA)]
    if unknown:
        raise ValueError(
            f"the names {unknown} do not say whether ranks along these dims get different rows; give data_dims=, such "
            f"as {(*unknown, *data)} if they do, and {tuple(data)} if they get the same"
        )
    return data


def submesh(mesh: DeviceMesh, names: tuple[str, ...], coords: Sequence[int]) -> DeviceMesh:
    """Return the mesh of some dims and views at coordinates; see `DeviceMesh.submesh`.

    What belongs to a dim that is left out goes with it: virtual stages with pp, sequence parallelism with tp, experts
    with any rank.
    """
    views = dict(mesh.views)
    parts = {name: views.get(name, (name,)) for name in names}
    layout = mesh.layout.select([[mesh.dim_number(dim) for dim in part] for part in parts.values()], coords)
    data, whole = _data_dims(mesh, parts), prod(layout.shape) == mesh.world_size
    divided = any(mesh.size(name) > 1 for name in data or ())
    return replace(
        mesh,
        dim_names=names,
        layout=layout,
        data_dims=data,
        ulysses_size=mesh.ulysses_size if divided else 1,
        ep_size=mesh.ep_size if whole else 1,
        etp_size=mesh.etp_size if whole else 0,
        expert_order=mesh.expert_order if whole else None,
        vpp_size=mesh.vpp_size if "pp" in names else 1,
        sequence_parallel=mesh.sequence_parallel and "tp" in names,
        views=tuple([view for view in mesh.views if view[0] not in names and set(view[1]) <= set(names)]),
    )


def _data_dims(mesh: DeviceMesh, parts: Mapping[str, Sequence[str]]) -> tuple[str, ...] | None:
    """Return the data dims of a part, outermost in data order first; None where it cannot say which rows a rank gets.

    Args:
        mesh: The whole mesh.
        parts: For each dim of the part, the dims of the mesh that it joins.
    """
    if mesh.data_dims is None:
        return None
    large = [name for name in mesh.data_dims if mesh.size(name) > 1]
    found: dict[str, list[str]] = {}
    for name, joined in parts.items():
        data = [dim for dim in joined if dim in mesh.data_dims]
        if all(dim in data or mesh.size(dim) == 1 for dim in joined):
            found.update({name: data} if data else {})
        elif set(data) & set(large):
            return None  # a dim along which rows differ at some steps
    names = sorted(found, key=lambda name: (mesh.data_dims or ()).index(found[name][0]))
    kept = [dim for name in names for dim in found[name] if dim in large]
    if kept != [dim for dim in large if dim in kept]:
        return None  # dims joined in another order than that of the data
    if not kept or mesh.ulysses_size == 1:
        return tuple(names)
    positions = 1
    for dim in reversed(large):  # the innermost dims that hold whole ulysses groups must all be there
        if positions % mesh.ulysses_size == 0:
            break
        if dim not in kept:
            return None
        positions *= mesh.size(dim)
    return tuple(names)
