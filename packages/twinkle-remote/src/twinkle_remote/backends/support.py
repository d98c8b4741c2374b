"""The parts for authors of a backend: the worker that runs tasks, failures, and the running session."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twinkle_remote.backends.memory import Memory
    from twinkle_remote.backends.thread_reply import ThreadReply, ThreadReplyBackend
    from twinkle_remote.call.arguments import Replicated, RunsOnce
    from twinkle_remote.call.lazy_values.lazy import Lazy, call_of, hand_over
    from twinkle_remote.call.pending.pending_call import PendingCall
    from twinkle_remote.call.submit import start_on_workers
    from twinkle_remote.call.tables.hand_over import plan_hand_over
    from twinkle_remote.call.tables.table import is_table
    from twinkle_remote.component.handle import make_handle
    from twinkle_remote.context import WorkerContext, are_ranks_threads, be_worker, has_own_context
    from twinkle_remote.failures.capture import capture
    from twinkle_remote.failures.frames import driver_line, user_stack
    from twinkle_remote.failures.raising import raise_failures
    from twinkle_remote.failures.reraise import both_type, members_of, raised_type, remade
    from twinkle_remote.failures.travel import error_to_bytes, reduce_error
    from twinkle_remote.interpreter_end import unless_ending
    from twinkle_remote.protocol.component import component_of
    from twinkle_remote.running import between_awaits
    from twinkle_remote.sessions.collector import collector_paused, paused_for
    from twinkle_remote.sessions.current import active, attach, report_records, running, session_tool
    from twinkle_remote.sessions.in_flight.patience import Watch
    from twinkle_remote.sessions.publishing import next_version, publishing, takes_in_flight
    from twinkle_remote.sessions.seeding import SessionSeed, seed_process, session_seed, stop_seeding
    from twinkle_remote.sessions.signals.flag import Flag
    from twinkle_remote.sessions.signals.inbox import Inbox
    from twinkle_remote.sessions.telemetry.progress_output import LINE_SECONDS, bar_class, report_start
    from twinkle_remote.sessions.telemetry.worker_lines import worker_line
    from twinkle_remote.sessions.weight_sources import WorkersOf
    from twinkle_remote.streams.rows.row_source import is_read_by_a_stream
    from twinkle_remote.worker.ping import ping
    from twinkle_remote.worker.worker import Worker

__all__ = [
    "LINE_SECONDS",
    "Flag",
    "Inbox",
    "Lazy",
    "Memory",
    "PendingCall",
    "Replicated",
    "RunsOnce",
    "SessionSeed",
    "ThreadReply",
    "ThreadReplyBackend",
    "Watch",
    "Worker",
    "WorkerContext",
    "WorkersOf",
    "active",
    "are_ranks_threads",
    "attach",
    "bar_class",
    "be_worker",
    "between_awaits",
    "both_type",
    "call_of",
    "capture",
    "collector_paused",
    "component_of",
    "driver_line",
    "error_to_bytes",
    "hand_over",
    "has_own_context",
    "is_read_by_a_stream",
    "is_table",
    "make_handle",
    "members_of",
    "next_version",
    "paused_for",
    "ping",
    "plan_hand_over",
    "publishing",
    "raise_failures",
    "raised_type",
    "reduce_error",
    "remade",
    "report_records",
    "report_start",
    "running",
    "seed_process",
    "session_seed",
    "session_tool",
    "start_on_workers",
    "stop_seeding",
    "takes_in_flight",
    "unless_ending",
    "user_stack",
    "worker_line",
]

_HOMES = {
    "LINE_SECONDS": "sessions.telemetry.progress_output",
    "Flag": "sessions.signals.flag",
    "Inbox": "sessions.signals.inbox",
    "Lazy": "call.lazy_values.lazy",
    "Memory": "backends.memory",
    "PendingCall": "call.pending.pending_call",
    "Replicated": "call.arguments",
    "RunsOnce": "call.arguments",
    "SessionSeed": "sessions.seeding",
    "ThreadReply": "backends.thread_reply",
    "ThreadReplyBackend": "backends.thread_reply",
    "Watch": "sessions.in_flight.patience",
    "Worker": "worker.worker",
    "WorkerContext": "context",
    "WorkersOf": "sessions.weight_sources",
    "active": "sessions.current",
    "are_ranks_threads": "context",
    "attach": "sessions.current",
    "bar_class": "sessions.telemetry.progress_output",
    "be_worker": "context",
    "between_awaits": "running",
    "both_type": "failures.reraise",
    "call_of": "call.lazy_values.lazy",
    "capture": "failures.capture",
    "collector_paused": "sessions.collector",
    "component_of": "protocol.component",
    "driver_line": "failures.frames",
    "error_to_bytes": "failures.travel",
    "hand_over": "call.lazy_values.lazy",
    "has_own_context": "context",
    "is_read_by_a_stream": "streams.rows.row_source",
    "is_table": "call.tables.table",
    "make_handle": "component.handle",
    "members_of": "failures.reraise",
    "next_version": "sessions.publishing",
    "paused_for": "sessions.collector",
    "ping": "worker.ping",
    "plan_hand_over": "call.tables.hand_over",
    "publishing": "sessions.publishing",
    "raise_failures": "failures.raising",
    "raised_type": "failures.reraise",
    "reduce_error": "failures.travel",
    "remade": "failures.reraise",
    "report_records": "sessions.current",
    "report_start": "sessions.telemetry.progress_output",
    "running": "sessions.current",
    "seed_process": "sessions.seeding",
    "session_seed": "sessions.seeding",
    "session_tool": "sessions.current",
    "start_on_workers": "call.submit",
    "stop_seeding": "sessions.seeding",
    "takes_in_flight": "sessions.publishing",
    "unless_ending": "interpreter_end",
    "user_stack": "failures.frames",
    "worker_line": "sessions.telemetry.worker_lines",
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
