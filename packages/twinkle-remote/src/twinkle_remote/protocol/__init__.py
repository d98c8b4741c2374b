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
        PickingStore,
        Reply,
        ReportingBackend,
        RestartingBackend,
        Store,
        WorkerGroup,
    )
    from twinkle_remote.protocol.call import Call
    from twinkle_remote.protocol.component import Component, component_of, is_component_type
    from twinkle_remote.protocol.defaults import SessionDefaults
    from twinkle_remote.protocol.failure import Failure, WorkerInfo, here
    from twinkle_remote.protocol.handed import HandedPiece, HandedShare, HandedSlot, HandedValue, HandOver, HandOverPlan
    from twinkle_remote.protocol.marks import NAMES, execute_of, options_of, options_under, prefetch_of
    from twinkle_remote.protocol.messages import Itself, Kind, Outcome, Share, StoredSlot, Task
    from twinkle_remote.protocol.own_calls import OwnCalls, UnseenFailure
    from twinkle_remote.protocol.served import JoiningStore, RowsOfRank, SentCall, ServedBackend
    from twinkle_remote.protocol.session_tools import SessionTool
    from twinkle_remote.protocol.spec import Collect, FunctionSpec, by_rank_options
    from twinkle_remote.protocol.tables import Rows
    from twinkle_remote.protocol.targets import attribute_at
    from twinkle_remote.protocol.waiting import Wait, WaitedWorker, WorkerWaits

__all__ = [
    "NAMES",
    "Backend",
    "BackendFactory",
    "Call",
    "Collect",
    "Component",
    "Failure",
    "FunctionSpec",
    "HandOver",
    "HandOverPlan",
    "HandedPiece",
    "HandedShare",
    "HandedSlot",
    "HandedValue",
    "InProcessBackend",
    "InputReplies",
    "Itself",
    "JoiningStore",
    "Kind",
    "MemoryQueueBackend",
    "Outcome",
    "OwnCalls",
    "PickingStore",
    "Reply",
    "ReportingBackend",
    "RestartingBackend",
    "Rows",
    "RowsOfRank",
    "SentCall",
    "ServedBackend",
    "SessionDefaults",
    "SessionTool",
    "Share",
    "Store",
    "StoredSlot",
    "Task",
    "UnseenFailure",
    "Wait",
    "WaitedWorker",
    "WorkerGroup",
    "WorkerInfo",
    "WorkerWaits",
    "attribute_at",
    "by_rank_options",
    "component_of",
    "execute_of",
    "here",
    "is_component_type",
    "options_of",
    "options_under",
    "prefetch_of",
]

_HOMES = {
    "NAMES": "protocol.marks",
    "Backend": "protocol.backend",
    "BackendFactory": "protocol.backend",
    "Call": "protocol.call",
    "Collect": "protocol.spec",
    "Component": "protocol.component",
    "Failure": "protocol.failure",
    "FunctionSpec": "protocol.spec",
    "HandOver": "protocol.handed",
    "HandOverPlan": "protocol.handed",
    "HandedPiece": "protocol.handed",
    "HandedShare": "protocol.handed",
    "HandedSlot": "protocol.handed",
    "HandedValue": "protocol.handed",
    "InProcessBackend": "protocol.backend",
    "InputReplies": "protocol.backend",
    "PickingStore": "protocol.backend",
    "Rows": "protocol.tables",
    "Itself": "protocol.messages",
    "JoiningStore": "protocol.served",
    "Kind": "protocol.messages",
    "MemoryQueueBackend": "protocol.backend",
    "Outcome": "protocol.messages",
    "OwnCalls": "protocol.own_calls",
    "Reply": "protocol.backend",
    "ReportingBackend": "protocol.backend",
    "RestartingBackend": "protocol.backend",
    "RowsOfRank": "protocol.served",
    "SentCall": "protocol.served",
    "ServedBackend": "protocol.served",
    "SessionDefaults": "protocol.defaults",
    "SessionTool": "protocol.session_tools",
    "Share": "protocol.messages",
    "Store": "protocol.backend",
    "StoredSlot": "protocol.messages",
    "Task": "protocol.messages",
    "UnseenFailure": "protocol.own_calls",
    "Wait": "protocol.waiting",
    "WaitedWorker": "protocol.waiting",
    "WorkerGroup": "protocol.backend",
    "WorkerInfo": "protocol.failure",
    "WorkerWaits": "protocol.waiting",
    "attribute_at": "protocol.targets",
    "by_rank_options": "protocol.spec",
    "component_of": "protocol.component",
    "execute_of": "protocol.marks",
    "here": "protocol.failure",
    "is_component_type": "protocol.component",
    "options_of": "protocol.marks",
    "options_under": "protocol.marks",
    "prefetch_of": "protocol.marks",
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
