"""The runtime of a process: its backend, its groups, its defaults and its calls in flight."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from twinkle_remote.protocol.backend import InProcessBackend, MemoryQueueBackend
from twinkle_remote.protocol.defaults import MAX_IN_FLIGHT, SavedFailures
from twinkle_remote.protocol.served import ServedBackend
from twinkle_remote.sessions.forked import forked_from
from twinkle_remote.sessions.in_flight.pending_calls import PendingCalls
from twinkle_remote.sessions.open_streams import OpenStreams
from twinkle_remote.sessions.reloaded import ReloadedModules
from twinkle_remote.sessions.telemetry.stats import Stats
from twinkle_remote.sessions.weight_sources import WeightSources

if TYPE_CHECKING:
    from twinkle_mesh import DeviceGroup, DeviceMesh
    from twinkle_remote.protocol.backend import Backend
    from twinkle_remote.protocol.component import Component
    from twinkle_remote.sessions.in_flight.call_in_flight import CallInFlight


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
        stats: Metrics of the latest calls.
        in_flight: Calls that are not known to be done.
        streams: The streams that are open.
        weights: What gives components their weights.
        reloaded: The program's modules that workers may have loaded.
        served: The backend, if the session is that of another process, which takes calls undivided; None otherwise.
        sends_messages: Calls are messages to other processes; elsewhere they are run here, or queued in memory.
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
    reloaded: ReloadedModules = field(default_factory=ReloadedModules)
    served: ServedBackend | None = field(init=False)
    sends_messages: bool = field(init=False)
    closed: bool = False
    sending: threading.RLock = field(default_factory=threading.RLock)
    saving: SavedFailures | None = None
    parent: int = 0
    _released: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.in_flight = PendingCalls(self.backend, self.max_in_flight)
        self.served = self.backend if isinstance(self.backend, ServedBackend) else None
        self.sends_messages = not isinstance(self.backend, InProcessBackend | MemoryQueueBackend)

    def mark_released(self, component: Component) -> None:
        """Refuse calls of a component from now on."""
        self._released.add((component.group, component.instance))

    def call_completed(self, call: CallInFlight) -> None:
        """Remove a completed call from those in flight; a failure is kept until it was raised to a caller."""
        self.in_flight.completed(call)

    def call_seen(self, call: CallInFlight) -> None:
        """Called when the failure of a call was raised to a caller."""
        self.in_flight.seen(call)

    def forget_calls(self) -> None:
        """Forget the calls in flight: in a forked process another thread may have held their lock."""
        self.in_flight = PendingCalls(self.backend, self.max_in_flight)

    def is_released(self, group: str, instance: str) -> bool:
        """Whether this process released a component; its workers know if another process did."""
        return (group, instance) in self._released

    def refusal(self, what: str) -> str:
        """The error text for a result that cannot be fetched because the session is closed; says what to use.

        Args:
            what: Name of the result.
        """
        if self.parent:
            return f"{what} cannot be fetched here: {forked_from(self.parent)}"
        return f"twinkle was shut down before {what} was fetched"
