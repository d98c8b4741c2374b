"""The contract between the call path and a backend: what is sent to a worker, and what comes back.

A backend owns groups of workers. It takes one `Task` for each called rank, runs it with a
`twinkle_remote.backends.support.Worker`, and returns a `Reply` for each. Dispatch, collect and error messages are the
same for all backends and are not part of this contract. `twinkle_remote.conformance` tests the contract.

A backend of a third party is a class with this interface, registered under the entry-point group `twinkle.backends`.
"""

from twinkle_remote.protocol.backend import (
    Backend,
    BackendFactory,
    InProcessBackend,
    InputReplies,
    MemoryQueueBackend,
    Reply,
    RevivingBackend,
    Store,
    WorkerGroup,
)
from twinkle_remote.protocol.component import Component
from twinkle_remote.protocol.defaults import SessionDefaults
from twinkle_remote.protocol.failure import Failure, WorkerInfo, here
from twinkle_remote.protocol.handed import (
    HandedPiece,
    HandedShare,
    HandedSlot,
    HandedValue,
    HandOver,
    HandOverPlan,
)
from twinkle_remote.protocol.messages import Itself, Kind, Outcome, Share, StoredSlot, Task
from twinkle_remote.protocol.own_calls import OwnCalls, UnseenFailure
from twinkle_remote.protocol.session_tools import SessionTool
from twinkle_remote.protocol.whole_calls import RankReplies, RowsOfRank, WholeCall, WholeCallBackend, WholeReply

__all__ = [
    "Backend",
    "BackendFactory",
    "Component",
    "Failure",
    "HandOver",
    "HandOverPlan",
    "HandedPiece",
    "HandedShare",
    "HandedSlot",
    "HandedValue",
    "InProcessBackend",
    "InputReplies",
    "Itself",
    "Kind",
    "MemoryQueueBackend",
    "Outcome",
    "OwnCalls",
    "RankReplies",
    "Reply",
    "RevivingBackend",
    "RowsOfRank",
    "SessionDefaults",
    "SessionTool",
    "Share",
    "Store",
    "StoredSlot",
    "Task",
    "UnseenFailure",
    "WholeCall",
    "WholeCallBackend",
    "WholeReply",
    "WorkerGroup",
    "WorkerInfo",
    "here",
]
