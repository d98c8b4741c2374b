"""One side of a sync: its ranks, and a way to run a function on the component of each."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from twinkle_remote import Lazy
from twinkle_remote.backends.support import component_of, running, start_on_workers
from twinkle_remote.errors import WorkerDiedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from twinkle_remote.backends.support import PendingCall
    from twinkle_remote.protocol import Component


@dataclass(slots=True)
class Answers:
    """A function under way on some ranks.

    Attributes:
        calls: The calls, each with its ranks.
        values: What is known already, by rank.
    """

    calls: Sequence[tuple[PendingCall, Sequence[int]]] = ()
    values: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lazies = [Lazy[list[Any]](call) for call, _ in self.calls]

    _lazies: list[Lazy[list[Any]]] = field(init=False, default_factory=list)

    def wait(self, deadline: float, died: set[int] | None = None) -> dict[int, Any]:
        """Each rank's result.

        Args:
            deadline: On the monotonic clock.
            died: Takes the ranks whose workers have ended; None raises for them, too.

        Raises:
            TwinkleError: A rank failed, or did not answer in time.
        """
        failed_first = sorted(zip(self.calls, self._lazies, strict=True), key=lambda one: not one[0][0].failed())
        for (_, ranks), lazy in failed_first:
            try:
                found = lazy.result(max(0.0, deadline - time.monotonic()))
            except WorkerDiedError:
                if died is None:
                    raise
                died.update(ranks)
            else:
                self.values.update(zip(ranks, found, strict=True))
        return self.values


class ComponentRanks:
    """The ranks of a component, on any backend.

    Args:
        handle: The component.

    Attributes:
        name: Of its class.
        component: As given.
        left_out: Ranks that take no part, because their workers are started again.
        runs_at_once: A call is over when it was made, because this process is one of the ranks.
    """

    def __init__(self, handle: object) -> None:
        component = component_of(handle)
        assert component is not None
        self._handle = handle
        self.component: Component = component
        self.name = component.name
        self.left_out: frozenset[int] = frozenset()
        self.runs_at_once = running().backend.in_process

    @property
    def ranks(self) -> Sequence[int]:
        """The ranks that are not left out."""
        return [rank for rank in self.component.ranks if rank not in self.left_out]

    def start(
        self, function: Callable[..., object], arguments: Mapping[int, tuple[Any, ...]], *, beside: bool = False
    ) -> Answers:
        """Begin `function(component, *arguments[rank])` on ranks.

        Args:
            function: A function of a module.
            arguments: By rank.
            beside: Run it beside the methods, each rank for itself; otherwise in turn with them.
        """
        ranks = sorted(arguments)
        if not ranks:
            return Answers()
        if not beside or self.runs_at_once:
            return Answers([(self._call(function, arguments, ranks), ranks)])
        return Answers([(self._call(function, arguments, [rank], beside=True), [rank]) for rank in ranks])

    def queue(self, function: Callable[..., object], arguments: Mapping[int, tuple[Any, ...]]) -> PendingCall | None:
        """Put a call into the queue of each rank."""
        return self._call(function, arguments, sorted(arguments)) if arguments else None

    def _call(
        self,
        function: Callable[..., object],
        arguments: Mapping[int, tuple[Any, ...]],
        ranks: Sequence[int],
        *,
        beside: bool = False,
    ) -> PendingCall:
        """A call whose failures are the sync's, which raises the first one: the program's next call raises no other."""
        given = [arguments[rank] for rank in ranks]
        return start_on_workers(self._handle, function, given, ranks=ranks, concurrent=beside, prefetched=True)


class PlainObject:
    """An object of this process: one rank."""

    ranks: Sequence[int] = (0,)
    runs_at_once = True

    def __init__(self, value: object) -> None:
        self._value = value
        self.name = type(value).__name__

    def start(
        self, function: Callable[..., object], arguments: Mapping[int, tuple[Any, ...]], *, beside: bool = False
    ) -> Answers:
        """Call it, here and now."""
        return Answers(values={rank: function(self._value, *given) for rank, given in arguments.items()})

    def queue(self, function: Callable[..., object], arguments: Mapping[int, tuple[Any, ...]]) -> None:
        """Call it, here and now."""
        self.start(function, arguments)


Participants: TypeAlias = ComponentRanks | PlainObject


def participants_of(value: object) -> Participants:
    """The ranks of a component, or of a plain object."""
    return PlainObject(value) if component_of(value) is None else ComponentRanks(value)
