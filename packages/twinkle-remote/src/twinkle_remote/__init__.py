"""Two decorators that turn a plain class into a mesh of workers."""

from __future__ import annotations

from twinkle_mesh import load_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from twinkle_remote.call.dispatch import Replicate as Replicate
    from twinkle_remote.call.send import run_on_workers as run_on_workers
    from twinkle_remote.call.send import submit as submit
    from twinkle_remote.component.construct import on as on
    from twinkle_remote.component.construct import release as release
    from twinkle_remote.component.decorators import remote_class as remote_class
    from twinkle_remote.component.decorators import remote_function as remote_function
    from twinkle_remote.component.explain import explain as explain
    from twinkle_remote.context import Place as Place
    from twinkle_remote.context import WorkerContext as WorkerContext
    from twinkle_remote.context import current_place as current_place
    from twinkle_remote.context import current_worker as current_worker
    from twinkle_remote.errors import AlreadyInitializedError as AlreadyInitializedError
    from twinkle_remote.errors import BackendError as BackendError
    from twinkle_remote.errors import CallCancelledError as CallCancelledError
    from twinkle_remote.errors import CallTimeoutError as CallTimeoutError
    from twinkle_remote.errors import CircularCallError as CircularCallError
    from twinkle_remote.errors import CollectError as CollectError
    from twinkle_remote.errors import DispatchError as DispatchError
    from twinkle_remote.errors import NotInitializedError as NotInitializedError
    from twinkle_remote.errors import PlacementError as PlacementError
    from twinkle_remote.errors import RemoteCallError as RemoteCallError
    from twinkle_remote.errors import ReplyLostError as ReplyLostError
    from twinkle_remote.errors import SessionLostError as SessionLostError
    from twinkle_remote.errors import TwinkleError as TwinkleError
    from twinkle_remote.errors import WorkerDiedError as WorkerDiedError
    from twinkle_remote.lazy.lazy import Lazy as Lazy
    from twinkle_remote.lazy.lazy import get as get
    from twinkle_remote.protocol.messages import is_handle as is_handle
    from twinkle_remote.rows.row_types import register_rows as register_rows
    from twinkle_remote.rows.wire_types import register_type as register_type
    from twinkle_remote.serving import Server as Server
    from twinkle_remote.serving import serve as serve
    from twinkle_remote.sessions.initialize import initialize as initialize
    from twinkle_remote.sessions.initialize import session as session
    from twinkle_remote.sessions.initialize import shutdown as shutdown
    from twinkle_remote.sessions.session import stats as stats
    from twinkle_remote.sessions.session import write_timeline as write_timeline
    from twinkle_remote.sessions.telemetry import CallRecord as CallRecord
    from twinkle_remote.streams.source import RowsInfo as RowsInfo
    from twinkle_remote.streams.stats import StageStats as StageStats
    from twinkle_remote.streams.stats import StreamStats as StreamStats
    from twinkle_remote.streams.stream import Stream as Stream
    from twinkle_remote.streams.stream import stream as stream
    from twinkle_remote.tables.minibatches import minibatches as minibatches
    from twinkle_remote.tables.operations import concat as concat
    from twinkle_remote.tables.operations import join as join
    from twinkle_remote.tables.operations import map as map  # noqa: A004  named like Python's
    from twinkle_remote.tables.operations import select as select
    from twinkle_remote.tables.operations import take as take
    from twinkle_remote.worker.replay import FailedCall as FailedCall
    from twinkle_remote.worker.replay import replay as replay
else:
    __all__, __getattr__, __dir__ = load_lazily(__name__)

__version__ = "0.1.0"
