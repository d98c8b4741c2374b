"""Meshes as JSON values and as text."""

from __future__ import annotations

from .layout import Layout, merged, nested
from .mesh import DeviceMesh
from .sizes import at_least_one

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_VERSION = 1


def to_dict(mesh: DeviceMesh) -> dict[str, object]:
    """Return the mesh as a dict of JSON values; what has an order is a list, since tools that write JSON sort keys."""
    layout = mesh._layout
    state: dict[str, object] = {
        "version": _VERSION,
        "dims": [[name, size] for name, size in zip(mesh.dim_names, mesh.shape, strict=True)],
        "device_type": mesh.device_type,
    }
    if layout.table is not None:
        state["ranks"] = list(layout.table)
    else:
        state["strides"] = [[list(factor) for factor in factors] for factors in layout.factors]
        state["offset"] = layout.offset
    optional: dict[str, tuple[object, object]] = {
        "ulysses_size": (mesh.ulysses_size, 1),
        "ep_size": (mesh.ep_size, 1),
        "etp_size": (mesh._etp, None),
        "vpp_size": (mesh.vpp_size, 1),
        "sequence_parallel": (mesh.sequence_parallel, False),
        "expert_order": (mesh._expert_order and list(mesh._expert_order), None),
        "views": ([[name, list(parts)] for name, parts in mesh.views], []),
        "nodes": (mesh.nodes and mesh.nodes.to_json(), None),
    }
    state.update({name: value for name, (value, default) in optional.items() if value != default})
    state["data_dims"] = list(mesh.data_dims)
    return state


def from_dict(state: Mapping[str, Any]) -> DeviceMesh:
    """Build a mesh from what `to_dict` returned, checking it as any other input."""
    if state.get("version") != _VERSION:
        raise ValueError(f"the state's version is {state.get('version')!r}; this package reads version {_VERSION}")
    try:
        names = [name for name, _ in state["dims"]]
        sizes = [at_least_one(name, size) for name, size in state["dims"]]
        if "ranks" in state:
            ranks = [int(rank) for rank in state["ranks"]]
            sound = len(set(ranks)) == len(ranks) == Layout.contiguous(sizes).size and min(ranks) >= 0
            layout = Layout.of_ranks(ranks, sizes) if sound else Layout.contiguous([1])
        else:
            factors = tuple([tuple([(int(size), int(step)) for size, step in dim]) for dim in state["strides"]])
            layout = Layout(factors, int(state["offset"]))
            flat = [factor for dim in factors for factor in dim]
            positive = layout.offset >= 0 and all(size > 1 for size, _ in flat)
            sound = positive and nested(flat) and all(merged(dim) == dim for dim in factors)
        if not sound or layout.shape != tuple(sizes):
            raise ValueError(f"the state's dims {state['dims']} do not fit its ranks")
        nodes = None
        if state.get("nodes") is not None:
            from .nodes import Nodes

            nodes = Nodes.from_json(state["nodes"])
        return DeviceMesh(
            layout,
            names,
            device_type=state["device_type"],
            ulysses_size=state.get("ulysses_size"),
            ep_size=state.get("ep_size"),
            etp_size=state.get("etp_size"),
            vpp_size=state.get("vpp_size"),
            sequence_parallel=state.get("sequence_parallel", False),
            expert_order=tuple(state["expert_order"]) if "expert_order" in state else None,
            views=tuple([(name, tuple(parts)) for name, parts in state.get("views", [])]),
            data_dims=tuple(state["data_dims"]),
            nodes=nodes,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not the state of a DeviceMesh: {error!r}") from error


def text(mesh: DeviceMesh) -> str:
    """Return the repr: dims with sizes, then what differs from the defaults."""
    layout = mesh._layout
    parts = [f"{name}={size}" for name, size in zip(mesh.dim_names, mesh.shape, strict=True)]
    if layout.table is not None:
        parts.append(f"ranks={mesh.ranks!r}")
    else:
        if layout.factors != Layout.contiguous(mesh.shape).factors:
            steps = ["x".join(str(stride) for _, stride in factors) or "0" for factors in layout.factors]
            parts.append(f"strides=({', '.join(steps)})")
        if layout.offset:
            parts.append(f"offset={layout.offset}")
    if mesh._etp is not None:
        parts.append(f"etp_size={mesh._etp}")
    for name, default in (("ulysses_size", 1), ("ep_size", 1), ("vpp_size", 1), ("sequence_parallel", False)):
        if getattr(mesh, name) != default:
            parts.append(f"{name}={getattr(mesh, name)}")
    if mesh.views:
        parts.append("views=(" + ", ".join(f"{name}: {'*'.join(dims)}" for name, dims in mesh.views) + ")")
    if mesh.nodes is not None:
        parts.append(f"nodes={mesh.nodes}")
    if mesh._expert_order is not None:
        parts.append(f"expert_order={'-'.join(mesh._expert_order)}")
    parts.append(f"device_type={mesh.device_type!r}")
    return f"DeviceMesh({', '.join(parts)})"
