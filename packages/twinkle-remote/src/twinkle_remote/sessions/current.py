"""The runtime of this process: a driver's is there from `initialize` on, a worker's is made when it is first used."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from twinkle_remote.errors import NotInitializedError
from twinkle_remote.protocol.component import forget_all
from twinkle_remote.protocol.defaults import SessionDefaults
from twinkle_remote.sessions.forked import forked_from

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.protocol.backend import Backend
    from twinkle_remote.protocol.defaults import SavedFailures
    from twinkle_remote.protocol.own_calls import OwnCalls
    from twinkle_remote.protocol.session_tools import SessionTool
    from twinkle_remote.sessions.runtime import Runtime
    from twinkle_remote.sessions.telemetry.stats import CallRecord, CallRecords


class _Attached(NamedTuple):
    """The parts of which a worker's runtime will be made."""

    mode: str
    backend: Backend
    defaults: SessionDefaults


_DEFAULTS = SessionDefaults()
_runtime: Runtime | None = None
_attached: _Attached | None = None
_making = threading.Lock()
_parent = 0  # in a forked process, the id of the parent whose session cannot be used here


def active() -> Runtime | None:
    """The runtime of this process; None if there is none."""
    if _attached is not None:
        _make()
    return _runtime


def running() -> Runtime:
    """The runtime of this process.

    Raises:
        NotInitializedError: There is none.
    """
    runtime = active()
    if runtime is None:
        raise NotInitializedError(absence())
    return runtime


def backend_here() -> Backend | None:
    """The backend of this process, also while its runtime is not made; None if there is none."""
    attached, runtime = _attached, _runtime
    if attached is not None:
        return attached.backend
    return None if runtime is None else runtime.backend


def absence() -> str:
    """The error text for a process without a runtime; says what to use."""
    if _parent:
        return forked_from(_parent)
    return "twinkle is not initialized: call twinkle.initialize(mode, groups=[DeviceGroup(...)]) first"


def stats() -> CallRecords:
    """Metrics of the latest calls, the oldest first: moved bytes and seconds; `print` shows them as a table.

    They include the calls that workers made, by the workers' wall clocks. Worker processes are asked for their records
    now. If a worker runs a `def` method, or has ended, its last report is used. Calls of a method are included when the
    method is over. In a worker process the function returns only that worker's own calls.
    """
    return records_of(running())


def records_of(runtime: Runtime) -> CallRecords:
    """The records of a session's calls, with those that workers made."""
    from twinkle_remote.protocol.backend import ReportingBackend  # few workers need it

    runtime.in_flight.poll()
    if isinstance(runtime.backend, ReportingBackend):
        busy = {(call.group_name, reply.rank) for call in runtime.in_flight.calls() for reply in call.pending()}
        runtime.stats.take(runtime.backend.records_of_workers(runtime.stats.since, busy))
    return runtime.stats.records()


def report_records(since: float) -> Sequence[CallRecord]:
    """The metrics of the calls that this worker process has made since then, in seconds of the wall clock."""
    runtime = _runtime
    if runtime is None:
        return ()
    runtime.in_flight.poll()
    return runtime.stats.own(since)


def install(runtime: Runtime) -> None:
    """Set the runtime of this process.

    Args:
        runtime: The runtime that `initialize` made.
    """
    global _runtime, _attached  # one runtime per process is the contract
    _runtime, _attached = runtime, None


def remove(runtime: Runtime) -> None:
    """Close a runtime, and remove it from the process unless another one was installed meanwhile.

    Args:
        runtime: A runtime without calls that anything waits for.
    """
    global _runtime  # one runtime per process is the contract
    if _runtime is runtime:
        _runtime = None
    runtime.closed = runtime.in_flight.closed = True
    forget_all()


def attach(mode: str, backend: Backend, defaults: SessionDefaults = _DEFAULTS) -> None:
    """Give a worker process the backend through which its components call those of other groups.

    Its runtime is made when a component first calls: most workers make no calls, and start sooner without it.

    Args:
        mode: Name of the backend.
        backend: The backend in the worker.
        defaults: What `Backend.configure` was given.
    """
    global _attached
    with _making:
        _attached = _Attached(mode, backend, defaults)
    if defaults.logging is not None:
        from twinkle_remote.sessions.worker_logging import take_logging  # few programs ask for it

        take_logging(defaults.logging)


def _make() -> None:
    """Make the runtime of a worker; once, whichever of its threads asks."""
    global _runtime, _attached
    from twinkle_remote.sessions.runtime import Runtime  # takes longer than the rest of a small worker's start

    with _making:
        if _attached is None:
            return
        mode, backend, defaults = _attached
        _runtime = Runtime(
            mode,
            backend,
            mesh=defaults.mesh,
            lazy_collect=defaults.lazy_collect,
            max_in_flight=defaults.max_in_flight,
            arguments={"mode": mode},
            saving=defaults.saving,
        )
        _attached = None


def saving_here() -> SavedFailures | None:
    """Where this process saves calls that fail; None if it does not."""
    attached, runtime = _attached, _runtime
    if attached is not None:
        return attached.defaults.saving
    return None if runtime is None else runtime.saving


def session_tool(name: str, *args: Any, **kwargs: Any) -> SessionTool | None:
    """A tool that works where the components are, if their session is another process's; None if it is this one's.

    Args:
        name: Name of an entry point of `twinkle.session_tools` that is installed there.
        *args: Arguments of the tool: components, and values that travel.
        **kwargs: Keyword arguments likewise.

    Raises:
        DispatchError: An argument cannot be sent.
        BackendError: There is no such tool.
    """
    runtime = active()
    return None if runtime is None or runtime.served is None else runtime.served.tool(name, args, kwargs)


def report_calls(seconds: float) -> OwnCalls:
    """The calls that this worker process has made, waited for during at most so many seconds."""
    from twinkle_remote.protocol.own_calls import OwnCalls  # the end of a session asks for them

    return OwnCalls() if _runtime is None else _runtime.in_flight.report(seconds)


def leave_to_parent() -> None:
    """In a forked process: leave the session to the parent; this process does not use it, wait for it or end it."""
    global _parent, _attached, _making
    _making = threading.Lock()  # another thread may have held it
    runtime, backend = _runtime, backend_here()
    if backend is None:
        return
    keeps_session = backend.after_fork()  # first: the backend may have to keep what calls in flight hold
    if runtime is not None:
        runtime.forget_calls()
    if keeps_session:
        return
    _parent, _attached = os.getppid(), None
    if runtime is None:
        forget_all()
        return
    runtime.parent = _parent
    remove(runtime)


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=leave_to_parent)
