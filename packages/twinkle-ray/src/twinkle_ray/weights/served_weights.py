"""The weight source of a served session's components, as its client's streams ask for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinkle_remote.backends.support import component_of, running

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinkle_remote.backends.support import WorkersOf
    from twinkle_remote.protocol import Component, SessionTool


class ServedWeights:
    """The weight source of a sync that runs at the server; see `WeightSource`.

    Args:
        tool: The `ServedSync` there.
        target: The sync's target.
        sync: The client's sync.
        version: Gives the version of the target's weights.
        given: Gives the version that the sync gave last, by itself.
    """

    def __init__(
        self,
        tool: SessionTool,
        target: object,
        sync: Callable[[], int],
        version: Callable[[], int],
        given: Callable[[], int],
    ) -> None:
        self._tool = tool
        self._sync = sync
        self._version = version
        self._given = given
        self._handles: dict[tuple[str, str], object] = {}
        self._record(target)

    @property
    def given(self) -> int:
        """The version that the sync gave last, by itself."""
        return self._given()

    def leave_out(self, workers: WorkersOf) -> None:
        """Leave ranks out of syncs."""
        self._tool.call("leave_out", *self._named(workers))

    def take_back(self, workers: WorkersOf) -> None:
        """Let ranks take part again."""
        self._tool.call("take_back", *self._named(workers))

    def attach(self, handle: object) -> None:
        """Give another component what the target is given, from now on."""
        self._tool.call("attach", handle)
        self._record(handle)

    def detach(self, component: Component) -> None:
        """Give a component that joined nothing any more."""
        self._tool.call("detach", self._handles[component.group, component.instance])

    def catch_up(self, workers: WorkersOf, donors: WorkersOf | None) -> None:
        """Give ranks that are left out the weights of other ranks; without any, all get a new version."""
        if donors is not None and self._version():
            self._tool.call("catch_up", *self._named(workers), *self._named(donors))
            return
        self.take_back(workers)
        if self._version():
            try:
                self._sync()
            except BaseException:
                self.leave_out(workers)
                raise

    def _record(self, handle: object) -> None:
        component = component_of(handle)
        assert component is not None
        self._handles[component.group, component.instance] = handle
        running().weights.add(component, self)

    def _named(self, workers: WorkersOf) -> tuple[object, list[int]]:
        component = workers.component
        return self._handles[component.group, component.instance], list(workers.ranks)
