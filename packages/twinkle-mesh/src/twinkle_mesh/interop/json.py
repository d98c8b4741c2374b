"""Meshes as JSON values."""

from __future__ import annotations

from twinkle_mesh.layout.factors import merged, nested
from twinkle_mesh.layout.layout import Layout
from twinkle_mesh.rules.checks import at_least_one, whole_number
from twinkle_mesh.rules.messages import preview

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, TypeVar

    from twinkle_mesh.layout.data_layout import DataLayout
    from twinkle_mesh.layout.factors import Factors
    from twinkle_mesh.value import MeshValue

    Mesh = TypeVar("Mesh", bound=MeshValue)

_VERSION = 1


def to_dict(mesh: MeshValue) -> dict[str, object]:
    """Return the mesh as a dict of JSON values. Ordered values are lists, because JSON tools sort keys."""
    layout = mesh.layout
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
    data = mesh.data_layout
    if data is not None:
        steps = [[list(factor) for factor in factors] for factors in data.factors]
        state["data_positions"] = steps if data.table is None else list(data.table)
    return state


def from_dict(kind: type[Mesh], state: Mapping[str, Any]) -> Mesh:
    """Build a mesh from what `to_dict` returned; raise for anything else."""
    if state.get("version") != _VERSION:
        raise ValueError(f"the state's version is {state.get('version')!r}; this package reads version {_VERSION}")
    try:
        names = [name for name, _ in state["dims"]]
        sizes = [at_least_one(name, size) for name, size in state["dims"]]
        nodes = None
        if state.get("nodes") is not None:
            from twinkle_mesh.nodes import Nodes

            nodes = Nodes.from_json(state["nodes"])
        return kind(
            _layout(state, sizes),
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
            data_layout=_data_layout(state, sizes),
            nodes=nodes,
        )
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"not the state of a DeviceMesh: {error!r}") from error


def _layout(state: Mapping[str, Any], shape: Sequence[int]) -> Layout:
    """Read the ranks of the dims."""
    if "ranks" in state:
        ranks = [whole_number("ranks", rank) for rank in state["ranks"]]
        sound = len(set(ranks)) == len(ranks) == Layout.contiguous(shape).size and min(ranks) >= 0
        layout = Layout.of_ranks(ranks, shape) if sound else Layout.contiguous([1])
    else:
        layout = Layout(_factors("strides", state), whole_number("offset", state["offset"]))
        flat = [factor for dim in layout.factors for factor in dim]
        positive = layout.offset >= 0 and all(size > 1 for size, _ in flat)
        sound = positive and nested(flat) and all(merged(dim) == dim for dim in layout.factors)
    if not sound or layout.shape != tuple(shape):
        raise ValueError(f"the state's dims {state['dims']} do not fit its ranks")
    return layout


def _data_layout(state: Mapping[str, Any], shape: Sequence[int]) -> DataLayout | None:
    """Read the position in data order of each coordinate, where the positions are not row-major over the data dims."""
    if "data_positions" not in state:
        return None
    from twinkle_mesh.layout.data_layout import DataLayout

    given = state["data_positions"]
    if isinstance(given[0], list):
        found = DataLayout(_factors("data_positions", state))
        flat = [factor for dim in found.factors for factor in dim]
        positive = all(size > 1 and step >= 0 for size, step in flat)
        sound = positive and found.is_sound(flat) and all(merged(dim) == dim for dim in found.factors)
    else:
        places = [whole_number("data_positions", place) for place in given]
        sound = len(places) == Layout.contiguous(shape).size and set(places) == set(range(max(places) + 1))
        found = DataLayout.of_ranks(places, shape) if sound else DataLayout(())
    if not sound or found.shape != tuple(shape) or found.row_major_dims() is not None:
        raise ValueError(f"the state's data_positions ({preview(given)}) do not fit its dims {state['dims']}")
    return found


def _factors(field: str, state: Mapping[str, Any]) -> tuple[Factors, ...]:
    return tuple(
        [tuple([(whole_number(field, size), whole_number(field, step)) for size, step in dim]) for dim in state[field]]
    )
