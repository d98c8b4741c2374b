"""One side of a sync: N ranks, and a way to run a function on the component of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from twinkle_remote import Lazy
from twinkle_remote.backends.support import component_of, running, start_on_workers
from twinkle_remote.protocol import InProcessBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_remote.backends.support import PendingCall


class Pending(Protocol):
    """A function under way on every rank."""

    def done(self) -> bool:
        """Whether every rank has answered; never waits."""

    def failed(self) -> bool:
        """Whether a rank is known to have failed; never waits."""

    def results(self, timeout: float | None = None) -> list[Any]:
        """Each rank's result, in rank order.

        Raises:
            TwinkleError: If a rank failed, died, or did not answer in time.
        """


@runtime_checkable
class Participants(Protocol):
    """The ranks of one component.

    Attributes:
        name: For messages.
        size: Number of ranks.
        polled: Whether calls run beside the controller, so that it can wait for several at once.
    """

    name: str
    size: int
    polled: bool

    def start(self, function: Callable[..., object], arguments: Sequence[tuple[object, ...]]) -> Pending:
        """Begin `function(component, *arguments[rank])` on every rank."""


class RemoteParticipants:
    """A component of twinkle-remote, on any backend."""

    def __init__(self, handle: object) -> None:
        component = component_of(handle)
        assert component is not None
        self._handle = handle
        self.name = component.name
        self.size = len(component.ranks)
        self.polled = not isinstance(running().backend, InProcessBackend)

    def start(self, function: Callable[..., object], arguments: Sequence[tuple[object, ...]]) -> Pending:
        """Begin a call through the component's own path."""
        return _RemotePending(start_on_workers(self._handle, function, arguments))


class _RemotePending:
    def __init__(self, call: PendingCall) -> None:
        self._call = call
        self._lazy = Lazy[list[Any]](call)  # at once: a failure that `results` raises later is not logged as lost

    def done(self) -> bool:
        return self._call.done()

    def failed(self) -> bool:
        return self._call.failed()

    def results(self, timeout: float | None = None) -> list[Any]:
        return self._lazy.result(timeout)


class LocalParticipant:
    """A plain object of this process: one rank."""

    polled = False
    size = 1

    def __init__(self, value: object) -> None:
        self._value = value
        self.name = type(value).__name__

    def start(self, function: Callable[..., object], arguments: Sequence[tuple[object, ...]]) -> Pending:
        """Call it, here and now."""
        ((argument),) = arguments
        return _Finished([function(self._value, *argument)])


class _Finished:
    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def done(self) -> bool:
        return True

    def failed(self) -> bool:
        return False

    def results(self, timeout: float | None = None) -> list[Any]:
        return self._values


def participants_of(value: object) -> Participants:
    """The ranks of a component, of a plain object, or the value itself where it has all members of `Participants`."""
    if component_of(value) is not None:
        return RemoteParticipants(value)
    return value if isinstance(value, Participants) else LocalParticipant(value)
