"""A weight sync of a served session, which its client uses by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_ray.weights.sync import WeightSync
from twinkle_remote.backends.support import WorkersOf, component_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_remote.protocol import Component


class ServedSync(WeightSync):
    """A `WeightSync` next to the session; an entry point of `twinkle.session_tools`.

    Args:
        source: A component.
        target: A component.
        **options: Those of `WeightSync`.

    Raises:
        TypeError: One of the two is no component.
    """

    def __init__(self, source: object, target: object, **options: Any) -> None:
        super().__init__(_known(source), _known(target), **options)
        self._under_way: tuple[Any, bool] | None = None
        self._held: Any = None

    def call(self, method: str, *args: Any) -> Any:
        """Do what `ServedController` and `ServedWeights` ask for."""
        known: dict[str, Callable[..., Any]] = {
            "sync": lambda version: self._all_at_once(version, in_flight=False),
            "hold": lambda version: self._all_at_once(version, in_flight=True),
            "start": self._start,
            "finish": self._finish,
            "publish": self._publish_held,
            "abandon": self._abandon,
            "give_back": self.close,
            "leave_out": lambda handle, ranks: self.leave_out(_workers(handle, ranks)),
            "take_back": lambda handle, ranks: self.take_back(_workers(handle, ranks)),
            "attach": lambda handle: self.attach(_known(handle)),
            "detach": lambda handle: self.detach(_component(handle)),
            "catch_up": lambda handle, ranks, donor, donors: self.catch_up(
                _workers(handle, ranks), _workers(donor, donors)
            ),
        }
        if method not in known:
            raise ValueError(f"a weight sync knows {', '.join(known)}, not {method!r}")
        with self._watch.over():
            return known[method](*args)

    def _all_at_once(self, version: int, *, in_flight: bool) -> dict[str, Any]:
        self._from_version(version)
        return self._arrive(self._arrived(in_flight), in_flight)

    def _start(self, version: int, in_flight: bool) -> None:
        self._from_version(version)
        self._under_way = self._begin(detached=True, in_flight=in_flight), in_flight

    def _finish(self) -> dict[str, Any]:
        under_way, self._under_way = self._under_way, None
        if under_way is None:
            raise ValueError("no sync is under way: start one first")
        return self._arrive(self._commit(under_way[0]), under_way[1])

    def _from_version(self, version: int) -> None:
        """The next sync publishes this version; one that its client gave up is dropped."""
        self._abandon()
        self.load_state_dict({"version": version - 1})

    def _next_version(self) -> int:
        return self._version + 1  # the client's streams have chosen it

    def _arrive(self, attempt: Any, in_flight: bool) -> dict[str, Any]:
        if in_flight:
            self._held = attempt
        else:
            self._publish(attempt)
        return self._delivered()

    def _publish_held(self) -> None:
        held, self._held = self._held, None
        if held is None:
            raise ValueError("the target holds no version: send one first")
        self._publish(held)

    def _abandon(self) -> None:
        """Drop what was begun, or is held, and never finished: its client was interrupted."""
        under_way, held = self._under_way, self._held
        self._under_way = self._held = None
        if held is not None:
            self._controller.abandon(held)
        if under_way is not None:
            self._controller.forget()
        if held is not None or under_way is not None:
            self._turn.end()

    def _delivered(self) -> dict[str, Any]:
        done = self.delivery
        assert done is not None
        digests = {"sent": dict(done.sent), "received": dict(done.received)}
        return {"version": done.version, "changed": list(done.changed), "moved": done.moved, **digests}


def _component(handle: object) -> Component:
    component = component_of(handle)
    if component is None:
        raise TypeError(f"weights move between components of the server, got {type(handle).__name__}")
    return component


def _known(handle: object) -> object:
    _component(handle)
    return handle


def _workers(handle: object, ranks: Sequence[int]) -> WorkersOf:
    component = _component(handle)
    if not ranks or not set(ranks) <= set(component.ranks):
        raise ValueError(f"{list(ranks)} are no ranks of {component.name}")
    return WorkersOf(component, tuple(ranks))
