"""The contract between the call path and a backend: what is sent to a worker, and what comes back.

A backend owns groups of workers. It takes one `Task` for each called rank, runs it with a
`twinkle_remote.backends.support.Worker`, and returns a `Reply` for each. Dispatch, collect and error messages are the
same for all backends and are not part of this contract. `twinkle_remote.conformance` tests the contract.

A backend of a third party is a class with this interface, registered under the entry-point group `twinkle.backends`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    from twinkle_remote.protocol.waiting import Wait, WaitedWorker
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
    "Wait",
    "WaitedWorker",
    "WholeCall",
    "WholeCallBackend",
    "WholeReply",
    "WorkerGroup",
    "WorkerInfo",
    "here",
]

_HOMES = {
    "Backend": "protocol.backend",
    "BackendFactory": "protocol.backend",
    "Component": "protocol.component",
    "Failure": "protocol.failure",
    "HandOver": "protocol.handed",
    "HandOverPlan": "protocol.handed",
    "HandedPiece": "protocol.handed",
    "HandedShare": "protocol.handed",
    "HandedSlot": "protocol.handed",
    "HandedValue": "protocol.handed",
    "InProcessBackend": "protocol.backend",
    "InputReplies": "protocol.backend",
    "Itself": "protocol.messages",
    "Kind": "protocol.messages",
    "MemoryQueueBackend": "protocol.backend",
    "Outcome": "protocol.messages",
    "OwnCalls": "protocol.own_calls",
    "RankReplies": "protocol.whole_calls",
    "Reply": "protocol.backend",
    "RevivingBackend": "protocol.backend",
    "RowsOfRank": "protocol.whole_calls",
    "SessionDefaults": "protocol.defaults",
    "SessionTool": "protocol.session_tools",
    "Share": "protocol.messages",
    "Store": "protocol.backend",
    "StoredSlot": "protocol.messages",
    "Task": "protocol.messages",
    "UnseenFailure": "protocol.own_calls",
    "Wait": "protocol.waiting",
    "WaitedWorker": "protocol.waiting",
    "WholeCall": "protocol.whole_calls",
    "WholeCallBackend": "protocol.whole_calls",
    "WholeReply": "protocol.whole_calls",
    "WorkerGroup": "protocol.backend",
    "WorkerInfo": "protocol.failure",
    "here": "protocol.failure",
}


def __getattr__(name: str) -> object:
    """Names are loaded on first use: a worker needs few of them."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"twinkle_remote.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
