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
        StagedWeights,
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
        Server,
        SessionLostError,
        StageStats,
        Stream,
        StreamStats,
        TwinkleError,
        UnknownWorkerError,
        WorkerContext,
        WorkerDiedError,
        as_completed,
        concat,
        current_place,
        current_worker,
        explain,
        gather,
        get,
        initialize,
        join,
        map,  # noqa: A004  named like Python's
        minibatches,
        on,
        register_splitter,
        register_type,
        release,
        remote_class,
        remote_function,
        rows_info,
        select,
        serve,
        session,
        shutdown,
        stats,
        stream,
        submit,
        take,
        write_timeline,
    )

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
    "Server",
    "SessionLostError",
    "Shard",
    "Shards",
    "SingleProcessCollective",
    "StageStats",
    "StagedWeights",
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
    "concat",
    "current_place",
    "current_worker",
    "explain",
    "gather",
    "get",
    "initialize",
    "join",
    "map",
    "merge_states",
    "minibatches",
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
    "select",
    "serve",
    "session",
    "shutdown",
    "stats",
    "stream",
    "submit",
    "take",
    "write_timeline",
]

_PACKAGES = ("twinkle_mesh", "twinkle_remote", "twinkle_ray", "twinkle_data")  # the last one loads torch


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    package = next(found for found in (import_module(one) for one in _PACKAGES) if name in found.__all__)
    value: object = getattr(package, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
