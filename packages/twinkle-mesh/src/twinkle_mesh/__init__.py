"""Device groups and device meshes: topology as pure-Python values."""

from __future__ import annotations

from .balance import balanced_slice
from .context import current_rank, use_rank
from .mesh import DeviceMesh

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .group import DeviceGroup
    from .transfer import Piece, plan_transfer

__version__ = "0.1.0"

__all__ = [
    "DeviceGroup",
    "DeviceMesh",
    "Piece",
    "balanced_slice",
    "current_rank",
    "plan_transfer",
    "use_rank",
]

_LAZY = {"DeviceGroup": "group", "Piece": "transfer", "plan_transfer": "transfer"}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f".{_LAZY[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
