"""The Ray backend of twinkle: placement, data plane, collectives and weight sync."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twinkle_ray.backend import RayBackend

__all__ = ["RayBackend"]
_HOMES = {"RayBackend": "twinkle_ray.backend"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__]
