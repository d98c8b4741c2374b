"""The parts for authors of a backend: the worker that runs tasks, failures, and the running session."""

from __future__ import annotations

from twinkle_mesh import load_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from twinkle_remote.call.pending import PendingCall as PendingCall
    from twinkle_remote.call.send import start_on_workers as start_on_workers
    from twinkle_remote.component.method import make_handle as make_handle
    from twinkle_remote.context import WorkerContext as WorkerContext
    from twinkle_remote.context import be_worker as be_worker
    from twinkle_remote.context import between_awaits as between_awaits
    from twinkle_remote.context import call_line as call_line
    from twinkle_remote.context import called_from as called_from
    from twinkle_remote.context import driver_line as driver_line
    from twinkle_remote.context import ping as ping
    from twinkle_remote.context import running_worker as running_worker
    from twinkle_remote.context import user_stack as user_stack
    from twinkle_remote.failures.report import raise_failures as raise_failures
    from twinkle_remote.failures.travel import Parts as Parts
    from twinkle_remote.failures.travel import both_type as both_type
    from twinkle_remote.failures.travel import capture as capture
    from twinkle_remote.failures.travel import error_to_bytes as error_to_bytes
    from twinkle_remote.failures.travel import parts_of as parts_of
    from twinkle_remote.failures.travel import raised_type as raised_type
    from twinkle_remote.failures.travel import remade as remade
    from twinkle_remote.lazy.lazy import Lazy as Lazy
    from twinkle_remote.lazy.lazy import call_of as call_of
    from twinkle_remote.lazy.table import known_rows as known_rows
    from twinkle_remote.protocol.backend import Memory as Memory
    from twinkle_remote.protocol.messages import component_of as component_of
    from twinkle_remote.sessions.pending_calls import over as over
    from twinkle_remote.sessions.seeding import begin_session as begin_session
    from twinkle_remote.sessions.seeding import seed_process as seed_process
    from twinkle_remote.sessions.seeding import session_seed as session_seed
    from twinkle_remote.sessions.session import active as active
    from twinkle_remote.sessions.session import attach as attach
    from twinkle_remote.sessions.session import next_version as next_version
    from twinkle_remote.sessions.session import publishing as publishing
    from twinkle_remote.sessions.session import raise_not_retrieved as raise_not_retrieved
    from twinkle_remote.sessions.session import running as running
    from twinkle_remote.sessions.session import session_tool as session_tool
    from twinkle_remote.sessions.session import takes_in_flight as takes_in_flight
    from twinkle_remote.sessions.telemetry import report_start as report_start
    from twinkle_remote.sessions.weights import WorkersOf as WorkersOf
    from twinkle_remote.streams.source import is_read_by_a_stream as is_read_by_a_stream
    from twinkle_remote.tables.nodes import Combined as Combined
    from twinkle_remote.tables.nodes import Concat as Concat
    from twinkle_remote.tables.nodes import Input as Input
    from twinkle_remote.tables.nodes import Join as Join
    from twinkle_remote.tables.nodes import LazySlot as LazySlot
    from twinkle_remote.tables.nodes import Node as Node
    from twinkle_remote.tables.nodes import Select as Select
    from twinkle_remote.tables.nodes import StoredRows as StoredRows
    from twinkle_remote.tables.nodes import Take as Take
    from twinkle_remote.worker.worker import Worker as Worker
else:
    __all__, __getattr__, __dir__ = load_lazily(__name__)
