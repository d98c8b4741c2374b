"""The Ray backend of twinkle: placement, data plane, collectives and weight sync."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twinkle_ray.backend import RayBackend
    from twinkle_ray.collective import Collective, CollectiveError, MeshCollective, Meshes, SingleProcessCollective
    from twinkle_ray.restarting import restart
    from twinkle_ray.weights import (
        ManifestError,
        ReplaceableWeights,
        Shard,
        StagedWeights,
        SyncHandle,
        WeightDelivery,
        WeightSync,
        WeightSyncError,
        WeightSyncTimeoutError,
    )

__version__ = "0.1.0"

__all__ = [
    "Collective",
    "CollectiveError",
    "ManifestError",
    "MeshCollective",
    "Meshes",
    "RayBackend",
    "ReplaceableWeights",
    "Shard",
    "SingleProcessCollective",
    "StagedWeights",
    "SyncHandle",
    "WeightDelivery",
    "WeightSync",
    "WeightSyncError",
    "WeightSyncTimeoutError",
    "restart",
]

_HOMES = {
    "Collective": "collective",
    "CollectiveError": "collective",
    "ManifestError": "weights",
    "MeshCollective": "collective",
    "Meshes": "collective",
    "RayBackend": "backend",
    "ReplaceableWeights": "weights",
    "Shard": "weights",
    "SingleProcessCollective": "collective",
    "StagedWeights": "weights",
    "SyncHandle": "weights",
    "WeightDelivery": "weights",
    "WeightSync": "weights",
    "WeightSyncError": "weights",
    "WeightSyncTimeoutError": "weights",
    "restart": "restarting",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"twinkle_ray.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__]
