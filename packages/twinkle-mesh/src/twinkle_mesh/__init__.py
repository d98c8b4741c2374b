"""Device groups and device meshes: topology as pure-Python values."""

from __future__ import annotations

from .context import ask_for_rank, current_rank, use_rank

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .balance import Slices, balanced_rows, balanced_slice
    from .group import DeviceGroup
    from .launch import LaunchedProcess, launched
    from .layout.ranks import Groups, Ranks
    from .mesh import DeviceMesh
    from .nodes import Nodes
    from .recipes import DDPConfig, FSDP2Config, MegatronFSDPConfig, create_device_mesh
    from .show.explain import DimReport, MeshExplanation
    from .show.picture import Picture
    from .transfer import Piece, plan_transfer
    from .unknown_names import check_known_names, instead_of, with_known_names

    Explanation = MeshExplanation

__version__ = "0.1.0"

__all__ = [
    "DDPConfig",
    "DeviceGroup",
    "DeviceMesh",
    "DimReport",
    "FSDP2Config",
    "Groups",
    "LaunchedProcess",
    "MegatronFSDPConfig",
    "MeshExplanation",
    "Nodes",
    "Picture",
    "Piece",
    "Ranks",
    "Slices",
    "ask_for_rank",
    "balanced_rows",
    "balanced_slice",
    "check_known_names",
    "create_device_mesh",
    "current_rank",
    "instead_of",
    "launched",
    "plan_transfer",
    "use_rank",
    "with_known_names",
]

# A worker without a mesh needs none of these.
_LAZY = {
    "DDPConfig": "recipes",
    "DeviceGroup": "group",
    "DeviceMesh": "mesh",
    "DimReport": "show.explain",
    "FSDP2Config": "recipes",
    "Groups": "layout.ranks",
    "LaunchedProcess": "launch",
    "MegatronFSDPConfig": "recipes",
    "MeshExplanation": "show.explain",
    "Nodes": "nodes",
    "Picture": "show.picture",
    "Piece": "transfer",
    "Ranks": "layout.ranks",
    "Slices": "balance",
    "balanced_rows": "balance",
    "balanced_slice": "balance",
    "check_known_names": "unknown_names",
    "create_device_mesh": "recipes",
    "instead_of": "unknown_names",
    "launched": "launch",
    "plan_transfer": "transfer",
    "with_known_names": "unknown_names",
}
_OLD_NAMES = {"Explanation": "MeshExplanation"}


def __getattr__(name: str) -> object:
    name = _OLD_NAMES.get(name, name)
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
