"""The session of this process: a driver's begins with `initialize`, a worker's with the worker."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from twinkle_remote.context import forked_from
from twinkle_remote.errors import NotInitializedError
from twinkle_remote.protocol.call import forget_all
from twinkle_remote.protocol.messages import SessionDefaults
from twinkle_remote.sessions.loads import Loads
from twinkle_remote.sessions.pending_calls import PendingCalls
from twinkle_remote.sessions.telemetry.stats import Stats
from twinkle_remote.sessions.weights import OpenStreams, WeightSources

if TYPE_CHECKING:
    from twinkle_mesh import DeviceGroup
    from twinkle_remote.protocol.backend import Backend, SessionTool
    from twinkle_remote.protocol.call import Component
    from twinkle_remote.protocol.messages import SavedFailures
    from twinkle_remote.sessions.telemetry.stats import CallRecords


_DEFAULTS = SessionDefaults()


@dataclass(slots=True)
class Runtime:
    """The session, in one process; a process has at most one.

    Attributes:
        mode: Name of the backend.
        backend: The backend itself.
        groups: Groups by name; may be empty.
        defaults: Whether results are lazy, how many calls may be in flight, and where failed calls are saved.
        arguments: Arguments of `initialize`.
        stats: Metrics of the latest calls.
        in_flight: Calls that are not known to be done.
        streams: The streams that are open.
        weights: What gives components their weights.
        loads: The calls in flight on data ranks that calls are given to one by one.
        released: Group and id of the components that this process has released.
        closed: `shutdown` is over, or the session belongs to the parent of this forked process.
        parent: Process id of that parent; 0 if the session belongs to this process.
    """

    mode: str
    backend: Backend
    groups: dict[str, DeviceGroup] = field(default_factory=dict)
    defaults: SessionDefaults = _DEFAULTS
    arguments: dict[str, Any] = field(default_factory=dict, repr=False)  # a token may be among them
    stats: Stats = field(default_factory=Stats)
    in_flight: PendingCalls = field(init=False)
    streams: OpenStreams = field(default_factory=OpenStreams)
    weights: WeightSources = field(default_factory=WeightSources)
    loads: Loads = field(default_factory=Loads)
    released: set[tuple[str, str]] = field(default_factory=set)
    closed: bool = False
    parent: int = 0

    def __post_init__(self) -> None:
        self.forget_calls()

    def forget_calls(self) -> None:
        """Have no calls in flight: in a forked process another thread may have held their lock."""
        self.in_flight = PendingCalls(self.defaults.max_in_flight)

    def has_released(self, component: Component) -> bool:
        """Whether this process released a component; its workers know if another process did."""
        return (component.group, component.instance) in self.released

    def refusal(self, what: str) -> str:
        """The error text for a result that cannot be fetched because the session is closed; says what to use.

        Args:
            what: Name of the result.
        """
        if self.parent:
            return f"{what} cannot be fetched here: {forked_from(self.parent)}"
        return f"twinkle was shut down before {what} was fetched"


_runtime: Runtime | None = None
_parent = 0  # in a forked process, the id of the parent whose session cannot be used here


def active() -> Runtime | None:
    """The runtime of this process; None if there is none."""
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


def raise_not_retrieved() -> None:
    """Raise the first failure whose result nobody has any more; see `PendingCalls.raise_not_retrieved`."""
    runtime = active()
    if runtime is not None:
        runtime.in_flight.raise_not_retrieved()


def absence() -> str:
    """The error text for a process without a runtime; says what to use."""
    if _parent:
        return forked_from(_parent)
    return "twinkle is not initialized: call twinkle.initialize(mode, groups=[DeviceGroup(...)]) first"


def stats() -> CallRecords:
    """Metrics of the latest calls of this process, the oldest first; `print` shows them as a table.

    They are moved bytes and seconds, by the workers' wall clocks. Calls that worker processes make are in the `stats()`
    of these.
    """
    return running().stats.records()


def install(runtime: Runtime) -> None:
    """Set the runtime of this process.

    Args:
        runtime: The runtime that `initialize` made.
    """
    global _runtime  # one runtime per process is the contract
    _runtime = runtime


def attach(mode: str, backend: Backend, defaults: SessionDefaults = _DEFAULTS) -> None:
    """Give a worker process the backend through which its components call those of other groups.

    Args:
        mode: Name of the backend.
        backend: The backend in the worker.
        defaults: What `Backend.configure` was given.
    """
    install(Runtime(mode, backend, defaults=defaults, arguments={"mode": mode}))


def remove(runtime: Runtime) -> None:
    """Close a runtime, and remove it from the process unless another one was installed meanwhile.

    Args:
        runtime: A runtime without calls that anything waits for.
    """
    global _runtime  # as in `install`
    if _runtime is runtime:
        _runtime = None
    runtime.closed = runtime.in_flight.closed = True
    for call in runtime.in_flight.calls():
        call.end_waits()
    forget_all()


def saving_here() -> SavedFailures | None:
    """Where this process saves calls that fail; None if it does not."""
    runtime = _runtime
    return None if runtime is None else runtime.defaults.saving


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
    runtime = _runtime
    return None if runtime is None else runtime.backend.tool(name, args, kwargs)


def leave_to_parent() -> None:
    """In a forked process: leave the session to the parent; this process does not use it, wait for it or end it."""
    global _parent
    runtime = _runtime
    if runtime is None:
        return
    keeps_session = runtime.backend.after_fork()  # first: the backend may have to keep what calls in flight hold
    runtime.forget_calls()
    if not keeps_session:
        _parent = runtime.parent = os.getppid()
        remove(runtime)


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=leave_to_parent)
