"""The repr of a mesh."""

from __future__ import annotations

from twinkle_mesh.layout.data_dims import data_order
from twinkle_mesh.layout.layout import Layout
from twinkle_mesh.rules.messages import listed_or_digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_mesh.layout.factors import Factors
    from twinkle_mesh.value import MeshValue


def mesh_repr(mesh: MeshValue) -> str:
    """Return the sizes of the dims, then all that differs from the defaults. Different meshes have different texts."""
    layout = mesh.layout
    parts = [f"{name}={size}" for name, size in zip(mesh.dim_names, mesh.shape, strict=True)]
    if layout.table is not None:
        parts.append(f"ranks=[{listed_or_digest(layout.table)}]")
    else:
        if layout.factors != Layout.contiguous(mesh.shape).factors:
            parts.append(f"strides={_strides(layout.factors)}")
        if layout.offset:
            parts.append(f"offset={layout.offset}")
    data = mesh.data_layout
    if data is not None:
        places = _strides(data.factors) if data.table is None else f"[{listed_or_digest(data.table)}]"
        parts.append(f"data_positions={places}")
    elif mesh.data_dims != data_order(mesh.dim_names):
        parts.append(f"data_dims=({', '.join(mesh.data_dims)})")
    if mesh._etp is not None:
        parts.append(f"etp_size={mesh._etp}")
    sizes = {"ulysses_size": mesh.ulysses_size, "ep_size": mesh.ep_size, "vpp_size": mesh.vpp_size}
    parts += [f"{name}={size}" for name, size in sizes.items() if size > 1]
    if mesh.sequence_parallel:
        parts.append("sequence_parallel=True")
    if mesh.views:
        parts.append("views=(" + ", ".join(f"{name}: {'*'.join(dims)}" for name, dims in mesh.views) + ")")
    if mesh.nodes is not None:
        parts.append(f"nodes={mesh.nodes}")
    if mesh._expert_order is not None:
        parts.append(f"expert_order={'-'.join(mesh._expert_order)}")
    parts.append(f"device_type={mesh.device_type!r}")
    return f"DeviceMesh({', '.join(parts)})"


def _strides(dims: Sequence[Factors]) -> str:
    """Return one stride for each dim, or size:stride for each factor of a dim that has several."""
    steps = [
        str(factors[0][1]) if len(factors) == 1 else "+".join(f"{size}:{step}" for size, step in factors) or "0"
        for factors in dims
    ]
    return f"({', '.join(steps)})"
