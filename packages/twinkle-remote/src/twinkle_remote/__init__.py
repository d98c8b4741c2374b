"""Two decorators that turn a plain class into a mesh of workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twinkle_remote.call.arguments import Replicate
    from twinkle_remote.call.generate import RemoteGenerator
    from twinkle_remote.call.lazy_values.as_completed import as_completed
    from twinkle_remote.call.lazy_values.get import gather, get
    from twinkle_remote.call.lazy_values.lazy import Lazy
    from twinkle_remote.call.submit import run_on_workers, submit, submit_on_workers
    from twinkle_remote.call.tables.minibatches import minibatches
    from twinkle_remote.call.tables.table_operations import concat, join, map, select, take  # noqa: A004  named like Python's
    from twinkle_remote.component.create import on
    from twinkle_remote.component.decorators import remote_class, remote_function
    from twinkle_remote.component.explain_call import explain
    from twinkle_remote.component.release import release
    from twinkle_remote.context import WorkerContext, current_worker
    from twinkle_remote.errors import (
        AlreadyInitializedError,
        BackendError,
        CallCancelledError,
        CallTimeoutError,
        CircularCallError,
        CollectError,
        DispatchError,
        NotInitializedError,
        PlacementError,
        RemoteCallError,
        ReplyLostError,
        SessionLostError,
        TwinkleError,
        UnknownWorkerError,
        WorkerDiedError,
    )
    from twinkle_remote.place import Place, current_place
    from twinkle_remote.protocol.component import is_handle
    from twinkle_remote.replay import replay
    from twinkle_remote.serving import Server, serve, stub_of
    from twinkle_remote.sessions.current import stats
    from twinkle_remote.sessions.initialize import initialize, session, shutdown
    from twinkle_remote.sessions.telemetry.stats import CallRecord
    from twinkle_remote.sessions.telemetry.timeline import write_timeline
    from twinkle_remote.streams.open_stream import stream
    from twinkle_remote.streams.rows.batch_info import rows_info
    from twinkle_remote.streams.rows.rows_info import RowsInfo
    from twinkle_remote.streams.stream import Stream
    from twinkle_remote.streams.telemetry.stream_stats import StageStats, StreamStats
    from twinkle_remote.values.registered_splitters import register_splitter
    from twinkle_remote.values.rows import ReducibleSplitter, Splitter
    from twinkle_remote.values.type_names import register_type
    from twinkle_remote.worker.failed_call import FailedCall

__version__ = "0.1.0"

__all__ = [
    "AlreadyInitializedError",
    "BackendError",
    "CallCancelledError",
    "CallRecord",
    "CallTimeoutError",
    "CircularCallError",
    "CollectError",
    "DispatchError",
    "FailedCall",
    "Lazy",
    "NotInitializedError",
    "Place",
    "PlacementError",
    "ReducibleSplitter",
    "RemoteCallError",
    "RemoteGenerator",
    "Replicate",
    "ReplyLostError",
    "RowsInfo",
    "Server",
    "SessionLostError",
    "Splitter",
    "StageStats",
    "Stream",
    "StreamStats",
    "TwinkleError",
    "UnknownWorkerError",
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
    "is_handle",
    "join",
    "map",
    "minibatches",
    "on",
    "register_splitter",
    "register_type",
    "release",
    "remote_class",
    "remote_function",
    "replay",
    "rows_info",
    "run_on_workers",
    "select",
    "serve",
    "session",
    "shutdown",
    "stats",
    "stream",
    "stub_of",
    "submit",
    "submit_on_workers",
    "take",
    "write_timeline",
]

_LAZY = {
    "AlreadyInitializedError": "twinkle_remote.errors",
    "BackendError": "twinkle_remote.errors",
    "CallCancelledError": "twinkle_remote.errors",
    "CallRecord": "twinkle_remote.sessions.telemetry.stats",
    "CallTimeoutError": "twinkle_remote.errors",
    "CircularCallError": "twinkle_remote.errors",
    "CollectError": "twinkle_remote.errors",
    "DispatchError": "twinkle_remote.errors",
    "FailedCall": "twinkle_remote.worker.failed_call",
    "Lazy": "twinkle_remote.call.lazy_values.lazy",
    "NotInitializedError": "twinkle_remote.errors",
    "Place": "twinkle_remote.place",
    "PlacementError": "twinkle_remote.errors",
    "ReducibleSplitter": "twinkle_remote.values.rows",
    "RemoteCallError": "twinkle_remote.errors",
    "RemoteGenerator": "twinkle_remote.call.generate",
    "Replicate": "twinkle_remote.call.arguments",
    "ReplyLostError": "twinkle_remote.errors",
    "RowsInfo": "twinkle_remote.streams.rows.rows_info",
    "Server": "twinkle_remote.serving",
    "SessionLostError": "twinkle_remote.errors",
    "Splitter": "twinkle_remote.values.rows",
    "StageStats": "twinkle_remote.streams.telemetry.stream_stats",
    "Stream": "twinkle_remote.streams.stream",
    "StreamStats": "twinkle_remote.streams.telemetry.stream_stats",
    "TwinkleError": "twinkle_remote.errors",
    "UnknownWorkerError": "twinkle_remote.errors",
    "WorkerContext": "twinkle_remote.context",
    "WorkerDiedError": "twinkle_remote.errors",
    "as_completed": "twinkle_remote.call.lazy_values.as_completed",
    "concat": "twinkle_remote.call.tables.table_operations",
    "current_place": "twinkle_remote.place",
    "current_worker": "twinkle_remote.context",
    "explain": "twinkle_remote.component.explain_call",
    "gather": "twinkle_remote.call.lazy_values.get",
    "get": "twinkle_remote.call.lazy_values.get",
    "initialize": "twinkle_remote.sessions.initialize",
    "is_handle": "twinkle_remote.protocol.component",
    "join": "twinkle_remote.call.tables.table_operations",
    "map": "twinkle_remote.call.tables.table_operations",
    "minibatches": "twinkle_remote.call.tables.minibatches",
    "on": "twinkle_remote.component.create",
    "register_splitter": "twinkle_remote.values.registered_splitters",
    "register_type": "twinkle_remote.values.type_names",
    "release": "twinkle_remote.component.release",
    "remote_class": "twinkle_remote.component.decorators",
    "remote_function": "twinkle_remote.component.decorators",
    "replay": "twinkle_remote.replay",
    "rows_info": "twinkle_remote.streams.rows.batch_info",
    "run_on_workers": "twinkle_remote.call.submit",
    "select": "twinkle_remote.call.tables.table_operations",
    "serve": "twinkle_remote.serving",
    "session": "twinkle_remote.sessions.initialize",
    "shutdown": "twinkle_remote.sessions.initialize",
    "stats": "twinkle_remote.sessions.current",
    "stream": "twinkle_remote.streams.open_stream",
    "stub_of": "twinkle_remote.serving",
    "submit": "twinkle_remote.call.submit",
    "submit_on_workers": "twinkle_remote.call.submit",
    "take": "twinkle_remote.call.tables.table_operations",
    "write_timeline": "twinkle_remote.sessions.telemetry.timeline",
}


def __getattr__(name: str) -> object:
    """Names are loaded on first use: a worker needs few of them."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_LAZY})
