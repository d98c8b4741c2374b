"""A mesh as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .layout import Layout
from .part import DATA_DIMS
from .sizes import shortened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .mesh import DeviceMesh

_MOST = 16
"""Slices, rows and columns that a picture has at most."""


def describe(mesh: DeviceMesh, rank: int | None = None) -> str:
    """Draw a mesh: a grid for each coordinate in all dims but the last two; a cell is rank:data rank, `rank` marked."""
    sizes = zip(mesh.dim_names, mesh.shape, strict=True)
    parts = [", ".join(f"{name}={size}" for name, size in sizes), f"{mesh.world_size} ranks"]
    parts += [] if mesh.data_dims is None else [f"data world size {mesh.data_world_size}"]
    lines = [" · ".join([*parts, *_attributes(mesh), mesh.device_type])]
    outer, first = mesh.dim_names[:-2], mesh.layout.rank([0] * len(mesh.shape))
    starts = mesh.group(outer, first)
    for start in starts[:_MOST]:
        lines += ["", *([", ".join(f"{name}={mesh.coordinate(start)[name]}" for name in outer)] if outer else [])]
        lines += _grid(mesh, start, rank)
    if max(len(starts), *mesh.shape[-2:], 1) > _MOST:
        lines += ["", f"At most {_MOST} slices, rows and columns are shown."]
    if rank is not None:
        lines += ["", f"[{rank}] " + " ".join(f"{name}={own}" for name, own in mesh.coordinate(rank).items())]
        lines += [f"  {name} group {shortened(mesh.group(name, rank))}" for name in mesh.dim_names]
    return "\n".join(lines)


def _grid(mesh: DeviceMesh, start: int, marked: int | None) -> Iterator[str]:
    """Yield the lines of the slice that begins at a rank: the last dim but one down, the last one across."""
    down, across = mesh.dim_names[-2:-1], mesh.dim_names[-1:]
    rows = [mesh.group(across, first)[:_MOST] for first in mesh.group(down, start)[:_MOST]]
    cells = [[f"[{rank}]" if rank == marked else str(rank) for rank in row] for row in rows]
    if mesh.data_dims is not None:
        data = [[mesh.data_rank(rank) for rank in row] for row in rows]
        cells = [list(map("{}:{}".format, *pair)) for pair in zip(cells, data, strict=True)]
    width, corner = max([len(cell) for row in cells for cell in row]), " \\ ".join((*down, *across))
    yield corner + "".join(f"  {number:>{width}}" for number in range(len(cells[0])))
    for number, row in enumerate(cells):
        yield f"{number if down else '':>{len(corner)}}" + "".join(f"  {cell:>{width}}" for cell in row)


def mesh_repr(mesh: DeviceMesh) -> str:
    """Return the sizes of the dims, then all that differs from the defaults."""
    parts = [f"{name}={size}" for name, size in zip(mesh.dim_names, mesh.shape, strict=True)]
    parts += [] if mesh.layout == Layout.contiguous(mesh.shape) else [f"ranks={shortened(mesh.ranks)}"]
    parts += [] if mesh.data_dims == tuple(filter(mesh.has_dim, DATA_DIMS)) else [f"data_dims={mesh.data_dims}"]
    return f"DeviceMesh({', '.join([*parts, *_attributes(mesh)])}, device_type={mesh.device_type!r})"


def _attributes(mesh: DeviceMesh) -> list[str]:
    """Return what is no dim, where it says something."""
    sizes = {name: getattr(mesh, name) for name in ("ulysses_size", "ep_size", "vpp_size")}
    shown = [f"{name}={size}" for name, size in sizes.items() if size > 1]
    shown += [f"etp_size={mesh.etp_size}"] if mesh.etp_size != mesh.size("tp") else []
    return [*shown, *(["sequence_parallel=True"] if mesh.sequence_parallel else [])]
