"""One side of a sync: N ranks, and a way to run a function on the component of each."""

from __future__ import annotations

import time
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from twinkle_remote import Lazy
from twinkle_remote.backends.support import component_of, running, start_on_workers
from twinkle_remote.errors import TwinkleError, WorkerDiedError
from twinkle_remote.protocol import InProcessBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_remote.backends.support import PendingCall
    from twinkle_remote.protocol import Component

_ANSWER_SECONDS = 2.0


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

    def let_go(self) -> None:
        """Wait for it no more: what becomes of it is nobody's failure."""


@runtime_checkable
class Participants(Protocol):
    """The ranks of one component.

    Attributes:
        name: For messages.
        size: Number of ranks.
        polled: Whether calls run while the controller does, so that it can wait for several at once.
    """

    name: str
    size: int
    polled: bool

    def start(self, function: Callable[..., object], arguments: Sequence[tuple[object, ...]]) -> Pending:
        """Begin `function(component, *arguments[rank])` on every rank."""


class RemoteParticipants:
    """The ranks of a component of twinkle-remote, on any backend, and of others that have joined it.

    Args:
        handle: The component.
        indices: Indices of the ranks that take part, always; None for all that live.

    Attributes:
        name: Of its class.
        size: Number of ranks that take part.
        polled: Whether its ranks run while the controller does.
        concurrent: Whether calls run while the components' other calls do, not after them.
        ranks: All ranks, each with its component; those of the first component come first.
        living: Indices of the ranks that take part; the others are lost, or left out.
        left_out: Indices of ranks that do not take part whether they live or not.
        lost: Indices of ranks that were left out at some time since the latest sync began.
    """

    def __init__(self, handle: object, indices: Sequence[int] | None = None) -> None:
        component = component_of(handle)
        assert component is not None
        self.name = component.name
        self.component = component
        self.polled = not isinstance(running().backend, InProcessBackend)
        self.concurrent = False
        self.chosen = indices is not None
        self.left_out: frozenset[int] = frozenset()
        self.lost: frozenset[int] = frozenset()
        self._latest: Sequence[PendingCall] = ()
        self._handles: dict[tuple[str, str], object] = {}
        self.ranks: list[tuple[Component, int]] = []
        self.attach(handle)
        self.keep(range(len(self.ranks)) if indices is None else indices)

    def attach(self, handle: object) -> None:
        """Have the ranks of another component take part too, from the next look on who lives."""
        component = component_of(handle)
        assert component is not None
        if _key(component) not in self._handles:
            self.ranks += [(component, rank) for rank in component.ranks]
        self._handles[_key(component)] = handle
        self.left_out -= self.indices(component, component.ranks)

    def detach(self, component: Component) -> None:
        """Have a component that joined take no part any more."""
        if _key(component) in self._handles and _key(component) != _key(self.component):
            gone = self.indices(component, component.ranks)
            self.left_out |= gone
            self.keep([index for index in self.living if index not in gone])

    def indices(self, component: Component, ranks: Sequence[int]) -> frozenset[int]:
        """The indices of some ranks of a component."""
        wanted = {(_key(component), rank) for rank in ranks}
        return frozenset(index for index, (own, rank) in enumerate(self.ranks) if (_key(own), rank) in wanted)

    def leave_out(self, indices: frozenset[int]) -> None:
        """Have these ranks take no part until they are taken back."""
        self.left_out |= indices
        self.lost |= indices

    def some(self, component: Component, ranks: Sequence[int]) -> RemoteParticipants:
        """Only these ranks of a component, as participants of their own."""
        places = [place for place, rank in enumerate(component.ranks) if rank in ranks]
        return RemoteParticipants(self._handles[_key(component)], places)

    def everyone(self) -> Sequence[int]:
        """Indices of the ranks that are not left out."""
        return [index for index in range(len(self.ranks)) if index not in self.left_out]

    def keep(self, living: Sequence[int]) -> None:
        """Have only these ranks take part."""
        self.living, self.size = living, len(living)

    def start(self, function: Callable[..., object], arguments: Sequence[tuple[object, ...]]) -> Pending:
        """Begin a call through the components' own path."""
        return RemotePending(self.call(function, arguments, concurrent=self.concurrent))

    def call(
        self,
        function: Callable[..., object],
        arguments: Sequence[tuple[object, ...]],
        *,
        concurrent: bool,
        prefetched: bool = False,
    ) -> list[PendingCall]:
        """Call a function on the ranks that take part: one call for each component, which the caller waits for.

        Args:
            function: The function.
            arguments: Of each rank that takes part.
            concurrent: Run it while the other calls of the ranks do.
            prefetched: The session does not wait for it, and reports no failure of it.
        """
        calls = []
        pairs = zip(self.living, arguments, strict=True)
        for component, own in groupby(pairs, key=lambda pair: self.ranks[pair[0]][0]):
            part = list(own)
            ranks = [self.ranks[index][1] for index, _ in part]
            given = [argument for _, argument in part]
            handle = self._handles[_key(component)]
            calls.append(
                start_on_workers(handle, function, given, ranks=ranks, concurrent=concurrent, prefetched=prefetched)
            )
        self._latest = calls
        return calls

    def lateness(self, seconds: float) -> Sequence[str]:
        """Texts on what the calls of the latest step wait for, with the stacks of the ranks; none where all are done.

        Args:
            seconds: How long they are waited for, for the message.
        """
        return [str(call.lateness(round(seconds, 1))) for call in self._latest if not call.done()]

    def look_who_lives(self, *, lost_only: bool = False) -> bool:
        """Ask the ranks, and leave out those whose workers have ended.

        Args:
            lost_only: Ask only those that do not take part now.

        Returns:
            Whether others take part than before.
        """
        before = set(self.living)
        found = before - self.left_out if lost_only else set()
        asked = {
            index: RemotePending([self._probe(component, rank)])
            for index, (component, rank) in enumerate(self.ranks)
            if index not in found and index not in self.left_out
        }
        for index, pending in asked.items():
            try:
                pending.results(_ANSWER_SECONDS)
            except WorkerDiedError:
                continue
            except TwinkleError:  # it lives, or that is not known: the sync itself finds out
                pass
            found.add(index)
        self.keep(sorted(found))
        return found != before

    def _probe(self, component: Component, rank: int) -> PendingCall:
        """Ask a rank whether it is there; what becomes of that is no failure of the program."""
        handle = self._handles[_key(component)]
        return start_on_workers(handle, _ping, ranks=[rank], concurrent=True, prefetched=True)


def _key(component: Component) -> tuple[str, str]:
    return component.group, component.instance


def _ping(component: object) -> None:
    """Runs on a worker: it is there."""


class RemotePending:
    """Calls of one function on the ranks of several components."""

    def __init__(self, calls: Sequence[PendingCall]) -> None:
        self._calls = calls
        self._lazies = [Lazy[list[Any]](call) for call in calls]  # a failure that is raised later is not logged as lost

    def done(self) -> bool:
        """Whether every rank has answered."""
        return all(call.done() for call in self._calls)

    def failed(self) -> bool:
        """Whether a rank is known to have failed."""
        return any(call.failed() for call in self._calls)

    def results(self, timeout: float | None = None) -> list[Any]:
        """Each rank's result."""
        until = None if timeout is None else time.monotonic() + timeout
        first = sorted(self._lazies, key=lambda lazy: not self._calls[self._lazies.index(lazy)].failed())
        for lazy in first:  # one that has failed is not held up by others
            lazy.result(None if until is None else max(0.0, until - time.monotonic()))
        return [value for lazy in self._lazies for value in lazy.result()]

    def let_go(self) -> None:
        """Wait for it no more."""
        for call in self._calls:
            call.prefetched = True


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

    def let_go(self) -> None:
        pass


def participants_of(value: object) -> Participants:
    """The ranks of a component, of a plain object, or the value itself where it has all members of `Participants`."""
    if component_of(value) is not None:
        return RemoteParticipants(value)
    return value if isinstance(value, Participants) else LocalParticipant(value)
