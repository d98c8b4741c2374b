"""The runtime of a process: its backend, its groups, its defaults and its calls in flight."""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from twinkle_remote.errors import NotInitializedError
from twinkle_remote.protocol.component import component_of, forget_all
from twinkle_remote.protocol.defaults import MAX_IN_FLIGHT, SavedFailures, SessionDefaults
from twinkle_remote.protocol.own_calls import OwnCalls
from twinkle_remote.protocol.whole_calls import WholeCallBackend
from twinkle_remote.sessions.open_streams import OpenStreams
from twinkle_remote.sessions.pending_calls import PendingCalls
from twinkle_remote.sessions.stats import CallRecords, Stats, SyncRecord
from twinkle_remote.sessions.weight_sources import WeightSources

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twinkle_mesh import DeviceGroup, DeviceMesh
    from twinkle_remote.call.pending_call import PendingCall
    from twinkle_remote.protocol.backend import Backend
    from twinkle_remote.protocol.component import Component


@dataclass(slots=True)
class Runtime:
    """The result of `initialize`; a process has at most one.

    Attributes:
        mode: Name of the backend.
        backend: The backend itself.
        groups: Groups by name; may be empty.
        mesh: Mesh of components without a mesh of their own, if it has the size of their group.
        lazy_collect: Whether results are lazy; the option of a function takes precedence.
        max_in_flight: Number of calls that one caller may have in flight in one group.
        arguments: Arguments of `initialize`.
        stats: Figures of the latest calls.
        in_flight: Calls that are not known to be done.
        streams: The streams that are open.
        weights: What gives components their weights.
        whole: The backend, if it takes calls undivided; None otherwise.
        closed: `shutdown` is over, or the session belongs to the parent of this forked process.
        sending: Held while the tasks of one call are sent to several ranks.
        saving: Where workers save calls that fail; None if they do not.
        parent: Process id of that parent; 0 if the session belongs to this process.
    """

    mode: str
    backend: Backend
    groups: dict[str, DeviceGroup] = field(default_factory=dict)
    mesh: DeviceMesh | None = None
    lazy_collect: bool = True
    max_in_flight: int = MAX_IN_FLIGHT
    arguments: dict[str, Any] = field(default_factory=dict, repr=False)  # a token may be among them
    stats: Stats = field(default_factory=Stats)
    in_flight: PendingCalls = field(init=False)
    streams: OpenStreams = field(default_factory=OpenStreams)
    weights: WeightSources = field(default_factory=WeightSources)
    whole: WholeCallBackend | None = field(init=False)
    closed: bool = False
    sending: threading.RLock = field(default_factory=threading.RLock)
    saving: SavedFailures | None = None
    parent: int = 0
    _released: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.in_flight = PendingCalls(self.backend, self.max_in_flight)
        self.whole = self.backend if isinstance(self.backend, WholeCallBackend) else None

    def mark_released(self, component: Component) -> None:
        """Refuse calls of a component from now on."""
        self._released.add((component.group, component.instance))

    def call_completed(self, call: PendingCall) -> None:
        """Remove a completed call from those in flight; a failure is kept until it was raised to a caller."""
        self.in_flight.completed(call)

    def call_seen(self, call: PendingCall) -> None:
        """Called when the failure of a call was raised to a caller."""
        self.in_flight.seen(call)

    def is_released(self, group: str, instance: str) -> bool:
        """Whether this process released a component; its workers know if another process did."""
        return (group, instance) in self._released

    def refusal(self, what: str) -> str:
        """The error text for a result that cannot be fetched because the session is closed; says what would do.

        Args:
            what: Name of the result.
        """
        if self.parent:
            return f"{what} cannot be fetched here: {forked_from(self.parent)}"
        return f"twinkle was shut down before {what} was fetched"


_DEFAULTS = SessionDefaults()
_runtime: Runtime | None = None
_parent = 0  # in a forked process, the id of the parent whose session cannot be used here


def running() -> Runtime:
    """The runtime of this process.

    Raises:
        NotInitializedError: There is none.
    """
    if _runtime is None:
        raise NotInitializedError(absence())
    return _runtime


def absence() -> str:
    """The error text for a process without a runtime; says what would do."""
    if _parent:
        return forked_from(_parent)
    return "twinkle is not initialized: call twinkle.initialize(mode, groups=[DeviceGroup(...)]) first"


def forked_from(parent: int) -> str:
    """The error text for a forked process; says what would do.

    Args:
        parent: Process id of the owner of the session.
    """
    return (
        f"process {os.getpid()} was forked from process {parent}, whose session works in that process alone: make the "
        'calls there and hand over their values, or start this process by multiprocessing.get_context("spawn")'
    )


def active() -> Runtime | None:
    """The runtime of this process; None if there is none."""
    return _runtime


def stats() -> CallRecords:
    """Figures of the latest calls, the oldest first: bytes that moved, and seconds; `print` shows them as a table."""
    runtime = running()
    runtime.in_flight.poll()
    return runtime.stats.records()


@contextmanager
def publishing(target: object, began: float | None = None) -> Iterator[None]:
    """A block in which a component is given new weights; the streams that run on it know the version after it.

    These streams begin nothing meanwhile, so that each of their calls is before the version or after it.

    Args:
        target: A component; of other values no stream knows.
        began: Wall clock when the sync began, in seconds; None for now.
    """
    component = component_of(target)
    if _runtime is None or component is None:
        yield
        return
    runtime, since = _runtime, time.time() if began is None else began
    with runtime.streams.publishing(component, since):
        yield
        runtime.stats.synced(SyncRecord(component.name, component.group, since, time.time()))


def takes_in_flight(target: object) -> bool:
    """Whether a component works for an open stream, so that it takes new weights between two calls."""
    component = component_of(target)
    return _runtime is not None and component is not None and _runtime.streams.work_on(component)


def install(runtime: Runtime) -> None:
    """Set the runtime of this process.

    Args:
        runtime: The runtime that `initialize` or `attach` made.
    """
    global _runtime  # one runtime per process is the contract
    _runtime = runtime


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
    """Give a worker process the runtime with which its components call those of other groups.

    Args:
        mode: Name of the backend.
        backend: The backend in the worker.
        defaults: What `Backend.configure` was given.
    """
    mesh, lazy_collect, limit = defaults.mesh, defaults.lazy_collect, defaults.max_in_flight
    arguments = {"mode": mode}
    install(
        Runtime(
            mode,
            backend,
            mesh=mesh,
            lazy_collect=lazy_collect,
            max_in_flight=limit,
            arguments=arguments,
            saving=defaults.saving,
        )
    )


def saving_here() -> SavedFailures | None:
    """Where this process saves calls that fail; None if it does not."""
    return None if _runtime is None else _runtime.saving


def report_calls(seconds: float) -> OwnCalls:
    """The calls that this worker process has made, waited for during at most so many seconds."""
    return OwnCalls() if _runtime is None else _runtime.in_flight.report(seconds)


def leave_to_parent() -> None:
    """In a forked process: leave the session to the parent; this process does not use it, wait for it or end it."""
    global _parent
    if _runtime is None:
        return
    goes_on = _runtime.backend.after_fork()  # first: the backend may have to keep what calls in flight hold
    _runtime.in_flight = PendingCalls(_runtime.backend, _runtime.max_in_flight)  # another thread may have held its lock
    if goes_on:
        return
    _parent = _runtime.parent = os.getppid()
    remove(_runtime)


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=leave_to_parent)
