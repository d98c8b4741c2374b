"""The components whose weights a stream's rows are made with: those of its stages, and those that stages call."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from twinkle_remote.protocol.component import component_of, same_component
from twinkle_remote.sessions.current import active
from twinkle_remote.streams.stages import RemoteStage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.protocol.component import Component
    from twinkle_remote.sessions.weight_sources import WeightSource
    from twinkle_remote.streams.stages import Stage

_log = logging.getLogger("twinkle.remote")


class StageWeights:
    """The sources of the weights of a stream's stages.

    Args:
        stages: The stages; others may join them.
        called: A component that stages call, several in a list or a tuple, or None.

    Raises:
        TypeError: `called` is no component.
    """

    def __init__(self, stages: Sequence[Stage], called: object) -> None:
        self._stages = stages
        given = () if called is None else called if isinstance(called, list | tuple) else (called,)
        self._called = [component for component in map(component_of, given) if component is not None]
        if len(self._called) < len(given):
            raise TypeError(f"weights_of={called!r} is no component whose weights are synced, or a list of these")
        self._is_reported = False

    def are_of(self, component: Component) -> bool:
        """Whether rows are made with the weights of a component."""
        return any(same_component(own, component) for own in self._components())

    def are_elsewhere(self, component: Component) -> None:
        """A component on which no stage runs has new weights: warned of once where nothing reports versions."""
        if not (self._is_reported or self._called or self._sources()):
            self._is_reported = True
            _log.warning(
                "%s on group %r has new weights, and no stage of the stream runs on it: if a stage calls it, as an "
                "agent does, say stream(..., weights_of=...), or lag and max_lag count no versions",
                component.name,
                component.group,
            )

    def came_late(self, version: int, counted: int) -> None:
        """Weights arrived after a later version: reported, because a component knows them by another number."""
        _log.warning(
            "weights of version %d arrived after version %d was published, and count as version %d of the stream: rows "
            "that are begun with them have begun=%d, and on_weights says %d. Finish syncs in the order of their starts",
            version,
            counted - 1,
            counted,
            counted,
            version,
        )

    def version(self, known: int, loaded: int) -> int:
        """The version with which a stream begins: the latest number of a sync, where one gave components their weights.

        Several syncs have numbers of their own before the stream begins; from then on they share the stream's.

        Args:
            known: The version that the stream knows.
            loaded: Version of the state that it was given since its last row; 0 without one.

        Raises:
            ValueError: The components have an older version than that state.
        """
        sources = self._sources()
        latest = max((source.given for _, source in sources), default=0)
        for component, source in sources:
            if loaded and (not source.given or latest < loaded):
                raise ValueError(
                    f"the stream's state is of version {loaded}, and {component.name} on group {component.group!r} was "
                    f"given {f'version {source.given}' if source.given else 'no weights'} since: load the state of the "
                    "WeightSync too, and call it before the first row"
                )
        return max(known, latest)

    def _components(self) -> Sequence[Component]:
        own = [one for stage in self._stages if isinstance(stage, RemoteStage) for one in stage.components]
        return [*own, *self._called]

    def _sources(self) -> Sequence[tuple[Component, WeightSource]]:
        runtime = active()
        if runtime is None:
            return ()
        return [(component, source) for component in self._components() for source in runtime.weights.of(component)]
