"""The runtime of a process: its backend, its groups, its defaults and its calls in flight."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from twinkle_remote.context import forked_from
from twinkle_remote.protocol.messages import MAX_IN_FLIGHT, SavedFailures
from twinkle_remote.sessions.loads import Loads
from twinkle_remote.sessions.pending_calls import PendingCalls
from twinkle_remote.sessions.telemetry.stats import Stats
from twinkle_remote.sessions.weights import OpenStreams, WeightSources

if TYPE_CHECKING:
    from twinkle_mesh import DeviceGroup
    from twinkle_remote.call.pending.pending_call import PendingCall
    from twinkle_remote.protocol.backend import Backend
    from twinkle_remote.protocol.call import Component


@dataclass(slots=True)
class Runtime:
    """The result of `initialize`; a process has at most one.

    Attributes:
        mode: Name of the backend.
        backend: The backend itself.
        groups: Groups by name; may be empty.
        lazy_collect: Whether results are lazy; the option of a function takes precedence.
        max_in_flight: Number of calls that one caller may have in flight in one group.
        arguments: Arguments of `initialize`.
        stats: Metrics of the latest calls.
        in_flight: Calls that are not known to be done.
        streams: The streams that are open.
        weights: What gives components their weights.
        closed: `shutdown` is over, or the session belongs to the parent of this forked process.
        loads: The calls in flight on data ranks that calls are given to one by one.
        saving: Where workers save calls that fail; None if they do not.
        parent: Process id of that parent; 0 if the session belongs to this process.
    """

    mode: str
    backend: Backend
    groups: dict[str, DeviceGroup] = field(default_factory=dict)
    lazy_collect: bool = True
    max_in_flight: int = MAX_IN_FLIGHT
    arguments: dict[str, Any] = field(default_factory=dict, repr=False)  # a token may be among them
    stats: Stats = field(default_factory=Stats)
    in_flight: PendingCalls = field(init=False)
    streams: OpenStreams = field(default_factory=OpenStreams)
    weights: WeightSources = field(default_factory=WeightSources)
    closed: bool = False
    loads: Loads = field(default_factory=Loads)
    saving: SavedFailures | None = None
    parent: int = 0
    _released: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.in_flight = PendingCalls(self.max_in_flight)

    def mark_released(self, component: Component) -> None:
        """Refuse calls of a component from now on."""
        self._released.add((component.group, component.instance))

    def call_completed(self, call: PendingCall) -> None:
        """Remove a completed call from those in flight; a failure is kept until it was raised to a caller."""
        self.in_flight.completed(call)

    def call_failed(self, call: PendingCall) -> None:
        """Called when a rank of a call has failed."""
        self.in_flight.failed(call)

    def call_seen(self, call: PendingCall) -> None:
        """Called when the failure of a call was raised to a caller."""
        self.in_flight.seen(call)

    def forget_calls(self) -> None:
        """Forget the calls in flight: in a forked process another thread may have held their lock."""
        self.in_flight = PendingCalls(self.max_in_flight)

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
