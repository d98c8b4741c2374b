"""The parts for authors of a backend: the worker that runs tasks, failures, and the running session."""

from twinkle_remote.backends.memory import Memory
from twinkle_remote.call.hand_over import plan_hand_over
from twinkle_remote.call.lazy import Lazy, call_of
from twinkle_remote.call.pending_call import PendingCall
from twinkle_remote.call.submit import start_on_workers
from twinkle_remote.context import WorkerContext
from twinkle_remote.failures.capture import capture
from twinkle_remote.failures.frames import driver_line, user_stack
from twinkle_remote.failures.raising import raise_failures
from twinkle_remote.failures.travel import error_to_bytes, reduce_error
from twinkle_remote.protocol.component import component_of
from twinkle_remote.sessions.collector import collector_paused, paused_for
from twinkle_remote.sessions.progress_output import LINE_SECONDS, bar_class
from twinkle_remote.sessions.runtime import active, attach, publishing, running, takes_in_flight
from twinkle_remote.sessions.session_tool import session_tool
from twinkle_remote.sessions.start_lines import tell_start
from twinkle_remote.sessions.weight_sources import WorkersOf
from twinkle_remote.sessions.worker_lines import worker_line
from twinkle_remote.worker.seeding import seed_process, stop_seeding
from twinkle_remote.worker.worker import Worker, between_awaits

__all__ = [
    "LINE_SECONDS",
    "Lazy",
    "Memory",
    "PendingCall",
    "Worker",
    "WorkerContext",
    "WorkersOf",
    "active",
    "attach",
    "bar_class",
    "between_awaits",
    "call_of",
    "capture",
    "collector_paused",
    "component_of",
    "driver_line",
    "error_to_bytes",
    "paused_for",
    "plan_hand_over",
    "publishing",
    "raise_failures",
    "reduce_error",
    "running",
    "seed_process",
    "session_tool",
    "start_on_workers",
    "stop_seeding",
    "takes_in_flight",
    "tell_start",
    "user_stack",
    "worker_line",
]
