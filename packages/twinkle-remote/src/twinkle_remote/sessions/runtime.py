"""The one runtime of a process: its backend, its groups, its defaults, its calls in flight."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from twinkle_remote.errors import NotInitializedError
from twinkle_remote.protocol.component import forget_all
from twinkle_remote.sessions.pending_calls import MAX_IN_FLIGHT, PendingCalls
from twinkle_remote.sessions.stats import CallRecord, Stats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_mesh import DeviceGroup, DeviceMesh
    from twinkle_remote.call.pending_call import PendingCall
    from twinkle_remote.protocol.backend import Backend
    from twinkle_remote.protocol.component import Component


@dataclass(slots=True)
class Runtime:
    """What `initialize` set up.

    Attributes:
        mode: Name of the backend.
        backend: The backend itself.
        groups: Groups by name; empty when none were given.
        mesh: Mesh of components that were given none and whose group it fits.
        lazy_collect: Whether results are lazy where the function does not say.
        max_in_flight: Calls that one caller may have in flight in one group.
        arguments: What `initialize` was called with.
        stats: Figures of the latest calls.
        in_flight: Calls that are not known to be done.
        closed: `shutdown` is over, or this process was forked from the one that has the session.
        parent: Process id of that one; 0 where it is this.
    """

    mode: str
    backend: Backend
    groups: dict[str, DeviceGroup] = field(default_factory=dict)
    mesh: DeviceMesh | None = None
    lazy_collect: bool = True
    max_in_flight: int = MAX_IN_FLIGHT
    arguments: dict[str, Any] = field(default_factory=dict)
    stats: Stats = field(default_factory=Stats)
    in_flight: PendingCalls = field(init=False)
    closed: bool = False
    parent: int = 0
    _released: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.in_flight = PendingCalls(self.backend, self.max_in_flight)

    def mark_released(self, component: Component) -> None:
        """Refuse calls of a component from now on."""
        self._released.add((component.group, component.instance))

    def call_completed(self, call: PendingCall) -> None:
        """Take a completed call off those in flight; its failure is kept until a caller was given it."""
        self.in_flight.completed(call)

    def call_seen(self, call: PendingCall) -> None:
        """A caller was given the failure of a call."""
        self.in_flight.seen(call)

    def is_released(self, component: Component) -> bool:
        """Whether this process released it; the workers know of all that are."""
        return (component.group, component.instance) in self._released

    def refusal(self, what: str) -> str:
        """Why something of a closed session cannot be had, and what would do.

        Args:
            what: The result of a call.
        """
        if self.parent:
            return f"{what} cannot be fetched here: {forked_from(self.parent)}"
        return f"twinkle was shut down before {what} was fetched"


_runtime: Runtime | None = None
_parent = 0  # the process whose session this one was forked from, and cannot use


def running() -> Runtime:
    """The runtime.

    Raises:
        NotInitializedError: There is none.
    """
    if _runtime is None:
        raise NotInitializedError(absence())
    return _runtime


def absence() -> str:
    """Why there is no runtime, and what would do."""
    if _parent:
        return forked_from(_parent)
    return "twinkle is not initialized: call twinkle.initialize(mode, groups=[DeviceGroup(...)]) first"


def forked_from(parent: int) -> str:
    """What a forked process cannot do, and what would do.

    Args:
        parent: The process that has the session.
    """
    return (
        f"process {os.getpid()} was forked from process {parent}, whose session works in that process alone: make the "
        'calls there and hand over their values, or start this process by multiprocessing.get_context("spawn")'
    )


def active() -> Runtime | None:
    """The runtime, or None."""
    return _runtime


def stats() -> Sequence[CallRecord]:
    """Figures of the latest calls, the oldest first: who moved how many bytes, and how long it took."""
    runtime = running()
    runtime.in_flight.poll()
    return runtime.stats.records()


def install(runtime: Runtime) -> None:
    """Make a runtime that of this process.

    Args:
        runtime: `initialize` made it, or a worker was attached to it.
    """
    global _runtime  # one runtime per process is the contract
    _runtime = runtime


def remove(runtime: Runtime) -> None:
    """Close a runtime; the process has none afterwards, but where another one was installed meanwhile.

    Args:
        runtime: Its calls are over, or given up.
    """
    global _runtime  # one runtime per process is the contract
    if _runtime is runtime:
        _runtime = None
    runtime.closed = runtime.in_flight.closed = True
    forget_all()


def attach(mode: str, backend: Backend) -> None:
    """Give a worker process the runtime with which its components call those of other groups."""
    install(Runtime(mode, backend, arguments={"mode": mode}))


def leave_to_parent() -> None:
    """In a forked process: leave the session to the parent; nothing here uses it, waits for it or ends it."""
    global _parent
    if _runtime is None:
        return
    _runtime.in_flight = PendingCalls(_runtime.backend, _runtime.max_in_flight)  # another thread may have held its lock
    if _runtime.backend.after_fork():
        return
    _parent = _runtime.parent = os.getppid()
    remove(_runtime)


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=leave_to_parent)
