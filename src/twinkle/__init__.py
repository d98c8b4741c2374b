"""Write a distributed post-training loop as plain Python over meshes of workers.

The names of all packages that a loop needs. Each name is loaded from its package on first use, so `import twinkle`
loads neither torch, ray nor numpy.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from twinkle_data import (
        BadSampleError,
        Batch,
        DataLoader,
        DeviceMeshSampler,
        Mixture,
        Packing,
        ProcessOptions,
        Shards,
        merge_states,
        plot_order,
        sample_seed,
    )
    from twinkle_mesh import DeviceGroup, DeviceMesh, plan_transfer
    from twinkle_ray import (
        Collective,
        CollectiveError,
        ManifestError,
        MeshCollective,
        ReplaceableWeights,
        Shard,
        SingleProcessCollective,
        SyncHandle,
        WeightDelivery,
        WeightSync,
        WeightSyncError,
        WeightSyncTimeoutError,
        restart,
    )
    from twinkle_remote import (
        CallTimeoutError,
        CollectError,
        DispatchError,
        Lazy,
        NotInitializedError,
        Place,
        PlacementError,
        RemoteCallError,
        Replicate,
        RowsInfo,
        SessionLostError,
        StageStats,
        Stream,
        StreamStats,
        TwinkleError,
        UnknownWorkerError,
        WorkerContext,
        WorkerDiedError,
        as_completed,
        current_place,
        current_worker,
        explain,
        gather,
        get,
        initialize,
        on,
        register_splitter,
        register_type,
        release,
        remote_class,
        remote_function,
        rows_info,
        session,
        shutdown,
        stats,
        stream,
        submit,
        write_timeline,
    )
    from twinkle_remote import Server as Server
    from twinkle_remote import serve as serve

__version__ = "0.1.0"

__all__ = [
    "BadSampleError",
    "Batch",
    "CallTimeoutError",
    "CollectError",
    "Collective",
    "CollectiveError",
    "DataLoader",
    "DeviceGroup",
    "DeviceMesh",
    "DeviceMeshSampler",
    "DispatchError",
    "Lazy",
    "ManifestError",
    "MeshCollective",
    "Mixture",
    "NotInitializedError",
    "Packing",
    "Place",
    "PlacementError",
    "ProcessOptions",
    "RemoteCallError",
    "ReplaceableWeights",
    "Replicate",
    "RowsInfo",
    "SessionLostError",
    "Shard",
    "Shards",
    "SingleProcessCollective",
    "StageStats",
    "Stream",
    "StreamStats",
    "SyncHandle",
    "TwinkleError",
    "UnknownWorkerError",
    "WeightDelivery",
    "WeightSync",
    "WeightSyncError",
    "WeightSyncTimeoutError",
    "WorkerContext",
    "WorkerDiedError",
    "as_completed",
    "current_place",
    "current_worker",
    "explain",
    "gather",
    "get",
    "initialize",
    "merge_states",
    "on",
    "plan_transfer",
    "plot_order",
    "register_splitter",
    "register_type",
    "release",
    "remote_class",
    "remote_function",
    "restart",
    "rows_info",
    "sample_seed",
    "session",
    "shutdown",
    "stats",
    "stream",
    "submit",
    "write_timeline",
]

_PACKAGES = ("twinkle_mesh", "twinkle_remote", "twinkle_ray", "twinkle_data")  # the last one loads torch

_OF_EXTRAS = ("Server", "serve")  # not in `__all__`: without the extra `http` a star import would fail


def __getattr__(name: str) -> object:
    if name not in __all__ and name not in _OF_EXTRAS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    homes = ("twinkle_remote",) if name in _OF_EXTRAS else _PACKAGES
    package = next(package for package in map(import_module, homes) if name in package.__all__ or name in _OF_EXTRAS)
    value: object = getattr(package, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_OF_EXTRAS})
