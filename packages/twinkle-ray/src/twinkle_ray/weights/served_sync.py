"""A weight sync of a served session, which its client uses by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_ray.weights.sync import WeightSync
from twinkle_remote.backends.support import WorkersOf, component_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_ray.weights.sync import SyncHandle
    from twinkle_remote.protocol import Component


class ServedSync:
    """A `WeightSync` beside the session; an entry point of `twinkle.session_tools`.

    Args:
        source: A component.
        target: A component.
        **options: Those of `WeightSync`.

    Raises:
        TypeError: One of the two is no component.
    """

    def __init__(self, source: object, target: object, **options: Any) -> None:
        self._sync = WeightSync(_known(source), _known(target), **options)
        self._open: SyncHandle | None = None

    def call(self, method: str, *args: Any) -> Any:
        """What `ServedController` and `ServedWeights` ask for."""
        known: dict[str, Callable[..., Any]] = {
            "sync": self._publish,
            "start": self._start,
            "finish": self._finish,
            "give_back": self._sync.close,
            "leave_out": lambda handle, ranks: self._sync.leave_out(_workers(handle, ranks)),
            "take_back": lambda handle, ranks: self._sync.take_back(_workers(handle, ranks)),
            "join": lambda handle: self._sync.join(_known(handle)),
            "part": lambda handle: self._sync.part(_component(handle)),
            "bring_up": lambda handle, ranks, donor, donors: self._sync.bring_up(
                _workers(handle, ranks), _workers(donor, donors)
            ),
        }
        if method not in known:
            raise ValueError(f"a weight sync knows {', '.join(known)}, not {method!r}")
        return known[method](*args)

    def _publish(self, version: int) -> dict[str, Any]:
        self._sync.load_state_dict({"version": version - 1})
        self._sync()
        return self._delivered()

    def _start(self, version: int) -> None:
        self._sync.load_state_dict({"version": version - 1})
        self._open = self._sync.start()

    def _finish(self) -> dict[str, Any]:
        handle, self._open = self._open, None
        if handle is None:
            raise ValueError("no sync is under way: start one first")
        handle.result()
        return self._delivered()

    def close(self) -> None:
        """Have every worker give back its buffers and connections."""
        self._sync.close()

    def _delivered(self) -> dict[str, Any]:
        done = self._sync.delivery
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
