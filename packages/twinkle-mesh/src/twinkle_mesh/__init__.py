"""Device groups and device meshes: topology as pure-Python values."""

from __future__ import annotations

from .balance import balanced_slice
from .context import current_rank, use_rank
from .mesh import DeviceMesh

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .group import DeviceGroup
    from .layout.ranks import Groups, Ranks
    from .nodes import Nodes
    from .recipes import DDPConfig, FSDP2Config, MegatronFSDPConfig, create_device_mesh
    from .show.explain import DimReport, Explanation
    from .show.picture import Picture
    from .transfer import Piece, plan_transfer

__version__ = "0.1.0"

__all__ = [
    "DDPConfig",
    "DeviceGroup",
    "DeviceMesh",
    "DimReport",
    "Explanation",
    "FSDP2Config",
    "Groups",
    "MegatronFSDPConfig",
    "Nodes",
    "Picture",
    "Piece",
    "Ranks",
    "balanced_slice",
    "create_device_mesh",
    "current_rank",
    "plan_transfer",
    "use_rank",
]

# Modules that need dataclasses or typing, which cost more to import than all of the mesh.
_LAZY = {
    "DDPConfig": "recipes",
    "DeviceGroup": "group",
    "DimReport": "show.explain",
    "Explanation": "show.explain",
    "FSDP2Config": "recipes",
    "Groups": "layout.ranks",
    "MegatronFSDPConfig": "recipes",
    "Nodes": "nodes",
    "Picture": "show.picture",
    "Piece": "transfer",
    "Ranks": "layout.ranks",
    "create_device_mesh": "recipes",
    "plan_transfer": "transfer",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
