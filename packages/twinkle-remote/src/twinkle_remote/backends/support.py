"""The parts for authors of a backend: the worker that runs tasks, failures, and the running session."""

from __future__ import annotations

from twinkle_mesh import load_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from twinkle_remote.backends.memory import Memory as Memory
    from twinkle_remote.backends.thread_reply import ThreadReply as ThreadReply
    from twinkle_remote.backends.thread_reply import ThreadReplyBackend as ThreadReplyBackend
    from twinkle_remote.call.arguments import Replicated as Replicated
    from twinkle_remote.call.arguments import RunsOnce as RunsOnce
    from twinkle_remote.call.column_rules import narrowed as narrowed
    from twinkle_remote.call.lazy_values.lazy import Lazy as Lazy
    from twinkle_remote.call.lazy_values.lazy import call_of as call_of
    from twinkle_remote.call.lazy_values.lazy import hand_over as hand_over
    from twinkle_remote.call.pending.pending_call import PendingCall as PendingCall
    from twinkle_remote.call.submit import start_on_workers as start_on_workers
    from twinkle_remote.call.tables.hand_over import plan_hand_over as plan_hand_over
    from twinkle_remote.call.tables.table import is_table as is_table
    from twinkle_remote.call.tables.table_plan import plan_of as plan_of
    from twinkle_remote.component.handle import make_handle as make_handle
    from twinkle_remote.context import WorkerContext as WorkerContext
    from twinkle_remote.context import are_ranks_threads as are_ranks_threads
    from twinkle_remote.context import be_worker as be_worker
    from twinkle_remote.context import has_own_context as has_own_context
    from twinkle_remote.failures.capture import capture as capture
    from twinkle_remote.failures.frames import driver_line as driver_line
    from twinkle_remote.failures.frames import user_stack as user_stack
    from twinkle_remote.failures.raising import raise_failures as raise_failures
    from twinkle_remote.failures.reraise import both_type as both_type
    from twinkle_remote.failures.reraise import raised_type as raised_type
    from twinkle_remote.failures.reraise import remade as remade
    from twinkle_remote.failures.reraise import sent_members as sent_members
    from twinkle_remote.failures.travel import error_to_bytes as error_to_bytes
    from twinkle_remote.failures.travel import reduce_error as reduce_error
    from twinkle_remote.interpreter_end import unless_ending as unless_ending
    from twinkle_remote.protocol.component import component_of as component_of
    from twinkle_remote.random_state import RandomState as RandomState
    from twinkle_remote.running import between_awaits as between_awaits
    from twinkle_remote.sessions.collector import collector_paused as collector_paused
    from twinkle_remote.sessions.collector import paused_for as paused_for
    from twinkle_remote.sessions.current import active as active
    from twinkle_remote.sessions.current import attach as attach
    from twinkle_remote.sessions.current import report_records as report_records
    from twinkle_remote.sessions.current import running as running
    from twinkle_remote.sessions.current import session_tool as session_tool
    from twinkle_remote.sessions.in_flight.patience import Watch as Watch
    from twinkle_remote.sessions.publishing import next_version as next_version
    from twinkle_remote.sessions.publishing import publishing as publishing
    from twinkle_remote.sessions.publishing import takes_in_flight as takes_in_flight
    from twinkle_remote.sessions.seeding import SessionSeed as SessionSeed
    from twinkle_remote.sessions.seeding import seed_process as seed_process
    from twinkle_remote.sessions.seeding import session_seed as session_seed
    from twinkle_remote.sessions.seeding import stop_seeding as stop_seeding
    from twinkle_remote.sessions.signals.flag import Flag as Flag
    from twinkle_remote.sessions.signals.inbox import Inbox as Inbox
    from twinkle_remote.sessions.telemetry.progress_output import LINE_SECONDS as LINE_SECONDS
    from twinkle_remote.sessions.telemetry.progress_output import bar_class as bar_class
    from twinkle_remote.sessions.telemetry.progress_output import report_start as report_start
    from twinkle_remote.sessions.telemetry.worker_lines import worker_line as worker_line
    from twinkle_remote.sessions.weight_sources import WorkersOf as WorkersOf
    from twinkle_remote.streams.rows.row_source import is_read_by_a_stream as is_read_by_a_stream
    from twinkle_remote.worker.ping import ping as ping
    from twinkle_remote.worker.worker import Worker as Worker
else:
    __all__, __getattr__, __dir__ = load_lazily(__name__)
