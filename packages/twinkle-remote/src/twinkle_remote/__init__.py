"""Two decorators that turn a plain class into a mesh of workers."""

from twinkle_remote.call.arguments import Replicate
from twinkle_remote.call.get import gather, get
from twinkle_remote.call.lazy import Lazy
from twinkle_remote.call.submit import run_on_workers, submit, submit_on_workers
from twinkle_remote.component.create import on
from twinkle_remote.component.decorators import remote_class, remote_function
from twinkle_remote.component.explain_call import explain
from twinkle_remote.component.release import release
from twinkle_remote.context import WorkerContext, current_worker
from twinkle_remote.errors import (
    AlreadyInitializedError,
    BackendError,
    CallTimeoutError,
    CollectError,
    DispatchError,
    NotInitializedError,
    PlacementError,
    RemoteCallError,
    ReplyLostError,
    TwinkleError,
    WorkerDiedError,
)
from twinkle_remote.protocol.component import is_handle
from twinkle_remote.sessions.initialize import initialize, session, shutdown
from twinkle_remote.sessions.runtime import stats
from twinkle_remote.sessions.stats import CallRecord
from twinkle_remote.values.rows import ReducibleSplitter, Splitter
from twinkle_remote.values.taught import register_splitter

__version__ = "0.1.0"

__all__ = [
    "AlreadyInitializedError",
    "BackendError",
    "CallRecord",
    "CallTimeoutError",
    "CollectError",
    "DispatchError",
    "Lazy",
    "NotInitializedError",
    "PlacementError",
    "ReducibleSplitter",
    "RemoteCallError",
    "Replicate",
    "ReplyLostError",
    "Splitter",
    "TwinkleError",
    "WorkerContext",
    "WorkerDiedError",
    "current_worker",
    "explain",
    "gather",
    "get",
    "initialize",
    "is_handle",
    "on",
    "register_splitter",
    "release",
    "remote_class",
    "remote_function",
    "run_on_workers",
    "session",
    "shutdown",
    "stats",
    "submit",
    "submit_on_workers",
]
