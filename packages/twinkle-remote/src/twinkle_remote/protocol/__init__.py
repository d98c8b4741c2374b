"""The contract between the call path and a backend: what is sent to a worker, and what comes back.

A backend owns groups of workers. It takes one `Task` for each called rank, runs it with a
`twinkle_remote.backends.support.Worker`, and returns a `Reply` for each. Dispatch, collect and error messages are the
same for all backends and are not part of this contract. `tests/conformance` of the repository tests the contract.

A backend of a third party is a class with this interface, registered under the entry-point group `twinkle.backends`.
"""

from __future__ import annotations

from twinkle_mesh import load_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from twinkle_remote.protocol.backend import Backend as Backend
    from twinkle_remote.protocol.backend import InputReplies as InputReplies
    from twinkle_remote.protocol.backend import Reply as Reply
    from twinkle_remote.protocol.backend import SessionTool as SessionTool
    from twinkle_remote.protocol.backend import Store as Store
    from twinkle_remote.protocol.backend import WorkerGroup as WorkerGroup
    from twinkle_remote.protocol.messages import Call as Call
    from twinkle_remote.protocol.messages import Component as Component
    from twinkle_remote.protocol.messages import Failure as Failure
    from twinkle_remote.protocol.messages import Itself as Itself
    from twinkle_remote.protocol.messages import Outcome as Outcome
    from twinkle_remote.protocol.messages import Replicated as Replicated
    from twinkle_remote.protocol.messages import SessionDefaults as SessionDefaults
    from twinkle_remote.protocol.messages import Task as Task
    from twinkle_remote.protocol.messages import WorkerInfo as WorkerInfo
    from twinkle_remote.protocol.messages import component_of as component_of
    from twinkle_remote.protocol.messages import here as here
    from twinkle_remote.protocol.messages import is_component_type as is_component_type
    from twinkle_remote.protocol.spec import options_of as options_of
    from twinkle_remote.tables.nodes import Columns as Columns
    from twinkle_remote.tables.nodes import Rows as Rows
    from twinkle_remote.tables.transfers import TaskTransfer as TaskTransfer
    from twinkle_remote.tables.transfers import TransferPlan as TransferPlan
else:
    __all__, __getattr__, __dir__ = load_lazily(__name__)
