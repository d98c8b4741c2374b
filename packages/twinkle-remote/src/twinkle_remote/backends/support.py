"""The parts for authors of a backend: the worker that runs tasks, failures, and the running session."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twinkle_remote.backends.memory import Memory
    from twinkle_remote.call.hand_over import plan_hand_over
    from twinkle_remote.call.lazy import Lazy, call_of
    from twinkle_remote.call.pending_call import PendingCall
    from twinkle_remote.call.submit import start_on_workers
    from twinkle_remote.context import WorkerContext, are_ranks_threads, be_worker, is_told
    from twinkle_remote.failures.capture import capture
    from twinkle_remote.failures.frames import driver_line, user_stack
    from twinkle_remote.failures.raising import raise_failures
    from twinkle_remote.failures.travel import error_to_bytes, reduce_error
    from twinkle_remote.protocol.component import component_of
    from twinkle_remote.sessions.collector import collector_paused, paused_for
    from twinkle_remote.sessions.current import active, attach, running
    from twinkle_remote.sessions.progress_output import LINE_SECONDS, bar_class
    from twinkle_remote.sessions.publishing import publishing, takes_in_flight
    from twinkle_remote.sessions.session_tool import session_tool
    from twinkle_remote.sessions.start_lines import tell_start
    from twinkle_remote.sessions.weight_sources import WorkersOf
    from twinkle_remote.sessions.worker_lines import worker_line
    from twinkle_remote.streams.row_source import is_read_by_a_stream
    from twinkle_remote.worker.running import between_awaits
    from twinkle_remote.worker.seeding import SessionSeed, seed_process, session_seed, stop_seeding
    from twinkle_remote.worker.worker import Worker

__all__ = [
    "LINE_SECONDS",
    "Lazy",
    "Memory",
    "PendingCall",
    "SessionSeed",
    "Worker",
    "WorkerContext",
    "WorkersOf",
    "active",
    "are_ranks_threads",
    "attach",
    "bar_class",
    "be_worker",
    "between_awaits",
    "call_of",
    "capture",
    "collector_paused",
    "component_of",
    "driver_line",
    "error_to_bytes",
    "is_read_by_a_stream",
    "is_told",
    "paused_for",
    "plan_hand_over",
    "publishing",
    "raise_failures",
    "reduce_error",
    "running",
    "seed_process",
    "session_seed",
    "session_tool",
    "start_on_workers",
    "stop_seeding",
    "takes_in_flight",
    "tell_start",
    "user_stack",
    "worker_line",
]

_HOMES = {
    "LINE_SECONDS": "sessions.progress_output",
    "Lazy": "call.lazy",
    "Memory": "backends.memory",
    "PendingCall": "call.pending_call",
    "SessionSeed": "worker.seeding",
    "Worker": "worker.worker",
    "WorkerContext": "context",
    "WorkersOf": "sessions.weight_sources",
    "active": "sessions.current",
    "are_ranks_threads": "context",
    "attach": "sessions.current",
    "bar_class": "sessions.progress_output",
    "be_worker": "context",
    "between_awaits": "worker.running",
    "call_of": "call.lazy",
    "capture": "failures.capture",
    "collector_paused": "sessions.collector",
    "component_of": "protocol.component",
    "driver_line": "failures.frames",
    "error_to_bytes": "failures.travel",
    "is_read_by_a_stream": "streams.row_source",
    "is_told": "context",
    "paused_for": "sessions.collector",
    "plan_hand_over": "call.hand_over",
    "publishing": "sessions.publishing",
    "raise_failures": "failures.raising",
    "reduce_error": "failures.travel",
    "running": "sessions.current",
    "seed_process": "worker.seeding",
    "session_seed": "worker.seeding",
    "session_tool": "sessions.session_tool",
    "start_on_workers": "call.submit",
    "stop_seeding": "worker.seeding",
    "takes_in_flight": "sessions.publishing",
    "tell_start": "sessions.start_lines",
    "user_stack": "failures.frames",
    "worker_line": "sessions.worker_lines",
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
