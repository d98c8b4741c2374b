"""A weight sync of a served session, which its client steers by name; see `ServedDriver`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from twinkle_ray.weights.sync import WeightSync
from twinkle_remote.backends.support import WorkersOf, component_of
from twinkle_remote.protocol import SessionTool

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinkle_ray.weights.driver import Driver
    from twinkle_ray.weights.routes import Version
    from twinkle_remote.protocol import Component


class ServedSync(WeightSync, SessionTool):
    """A `WeightSync` next to the session; an entry point of `twinkle.session_tools`.

    The client's streams choose the versions. A version that a client has staged and never published, because it was
    interrupted, is replaced by its next one.

    Args:
        source: A component.
        target: A component.
        **options: Those of `WeightSync`.

    Raises:
        TypeError: One of the two is no component.
    """

    _driver: Driver

    def __init__(self, source: object, target: object, **options: Any) -> None:
        for handle in (source, target):
            _component(handle)
        super().__init__(source, target, **options)
        self._staged: tuple[Version, float] | None = None

    def call(self, method: str, *args: Any) -> Any:
        """Do what `ServedDriver` asks for."""
        known: dict[str, Callable[..., Any]] = {
            "stage": self._stage_version,
            "arrive": lambda in_flight: self._driver.arrive(self._under_way[0], self._deadline, in_flight=in_flight),
            "publish": self._publish_version,
            "forget": self._driver.forget,
            "give_back": self.close,
            "leave_out": lambda handle: self._driver.leave_out(_workers(handle)),
            "take_back": lambda handle: self._driver.take_back(_workers(handle)),
            "restore": lambda handle: self._driver.restore(_workers(handle), self._deadline),
        }
        if method not in known:
            raise ValueError(f"a weight sync knows {', '.join(known)}, not {method!r}")
        return known[method](*args)

    @property
    def _deadline(self) -> float:
        return time.monotonic() + self._timeout

    @property
    def _under_way(self) -> tuple[Version, float]:
        if self._staged is None:
            raise ValueError("no version is staged: stage one first")
        return self._staged

    def _stage_version(self, number: int, in_flight: bool, most_waiting: int) -> tuple[int, bool]:
        began = time.time()
        version = self._driver.stage(number, self._deadline, in_flight=in_flight, most_waiting=most_waiting)
        self._staged = version, began
        return version.moved, version.by_messages

    def _publish_version(self) -> None:
        version, began = self._under_way
        self._staged = None
        self._publish(version, began)


def _component(handle: object) -> Component:
    component = component_of(handle)
    if component is None:
        raise TypeError(f"weights move between components of the server, got {type(handle).__name__}")
    return component


def _workers(handle: object) -> WorkersOf:
    component = _component(handle)
    return WorkersOf(component, component.ranks)
