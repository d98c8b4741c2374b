"""The contract between the call path and a backend: what is sent to a worker, and what comes back."""

from twinkle_remote.protocol.messages import (
    Backend,
    BackendFactory,
    CarefulGroup,
    HandedSlot,
    HandOver,
    InProcessBackend,
    Itself,
    Kind,
    Outcome,
    Reply,
    Share,
    Store,
    StoredSlot,
    Task,
    WorkerGroup,
)

__all__ = [
    "Backend",
    "BackendFactory",
    "CarefulGroup",
    "HandOver",
    "HandedSlot",
    "InProcessBackend",
    "Itself",
    "Kind",
    "Outcome",
    "Reply",
    "Share",
    "Store",
    "StoredSlot",
    "Task",
    "WorkerGroup",
]
