"""The contract between the call path and a backend: what is sent to a worker, and what comes back.

A backend owns groups of workers. It takes one `Task` for each called rank, has the worker's
`twinkle_remote.backends.support.Worker` run it, and hands back a `Reply` for each. What is split, what is collected and
what an error says is the same for all backends and lives above this line. `twinkle_remote.conformance` is the
executable form of this page.

A third party's backend is a class with this interface, registered under the entry-point group `twinkle.backends`.
"""

from twinkle_remote.protocol.backend import (
    Backend,
    BackendFactory,
    InProcessBackend,
    InputReplies,
    Reply,
    Store,
    WorkerGroup,
)
from twinkle_remote.protocol.failure import Failure, WorkerInfo, here
from twinkle_remote.protocol.messages import (
    HandedSlot,
    HandOver,
    Itself,
    Kind,
    Outcome,
    Share,
    StoredSlot,
    Task,
)

__all__ = [
    "Backend",
    "BackendFactory",
    "Failure",
    "HandOver",
    "HandedSlot",
    "InProcessBackend",
    "InputReplies",
    "Itself",
    "Kind",
    "Outcome",
    "Reply",
    "Share",
    "Store",
    "StoredSlot",
    "Task",
    "WorkerGroup",
    "WorkerInfo",
    "here",
]
