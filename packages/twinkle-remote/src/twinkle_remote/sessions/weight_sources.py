"""Sources of components' weights, so that a worker that is started again can catch up."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.protocol.component import Component


class WorkersOf(NamedTuple):
    """Some ranks of a component.

    Attributes:
        component: The component.
        ranks: At least one.
    """

    component: Component
    ranks: Sequence[int]


class WeightSource(Protocol):
    """Gives a component its weights, in versions."""

    @property
    def given(self) -> int:
        """The version that it gave last, by itself; 0 before the first, and after it was given another state."""

    def leave_out(self, workers: WorkersOf) -> None:
        """Give these ranks nothing until they have caught up, or are taken back."""

    def take_back(self, workers: WorkersOf) -> None:
        """Give these ranks the next version as all others."""

    def attach(self, handle: object) -> None:
        """Give another component the same weights from now on."""

    def detach(self, component: Component) -> None:
        """Give an attached component nothing any more."""

    def catch_up(self, workers: WorkersOf, donors: WorkersOf | None) -> None:
        """Give ranks that are left out the version that the others have, or a newer one.

        Args:
            workers: Those of one or more replicas.
            donors: The ranks of a replica that has it; None if there is none.

        Raises:
            TwinkleError: It failed; the ranks are still left out.
        """


class WeightSources:
    """The weight sources of a session, by component."""

    def __init__(self) -> None:
        self._sources: dict[tuple[str, str], weakref.WeakSet[WeightSource]] = {}

    def add(self, component: Component, source: WeightSource) -> None:
        """A source gives a component its weights from now on, as long as the source exists."""
        self._sources.setdefault((component.group, component.instance), weakref.WeakSet()).add(source)

    def of(self, component: Component) -> Sequence[WeightSource]:
        """The sources of a component."""
        return tuple(self._sources.get((component.group, component.instance), ()))
