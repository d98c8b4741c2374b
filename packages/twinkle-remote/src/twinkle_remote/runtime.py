"""The one runtime of a process: which backend, which groups, which defaults; from `initialize` to `shutdown`."""

from __future__ import annotations

import atexit
import logging
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from twinkle_remote.errors import AlreadyInitializedError, BackendError, NotInitializedError
from twinkle_remote.stats import CallRecord, Stats

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from twinkle_mesh import DeviceGroup, DeviceMesh
    from twinkle_remote.inflight import Call
    from twinkle_remote.protocol import Backend, BackendFactory

_log = logging.getLogger("twinkle.remote")
_PROVIDERS = {"ray": "twinkle-ray"}
_MAX_IN_FLIGHT = 256


@dataclass(slots=True)
class Runtime:
    """What `initialize` set up.

    Attributes:
        mode: Name of the backend.
        backend: The backend itself.
        groups: Groups by name; empty when none were given.
        mesh: Mesh of components that were given none and whose group it fits.
        lazy_collect: Whether results are lazy where the function does not say.
        arguments: What `initialize` was called with.
        stats: Figures of the latest calls.
        in_flight: Calls that are not known to be done, the oldest first.
    """

    mode: str
    backend: Backend
    groups: dict[str, DeviceGroup] = field(default_factory=dict)
    mesh: DeviceMesh | None = None
    lazy_collect: bool = True
    arguments: dict[str, Any] = field(default_factory=dict)
    stats: Stats = field(default_factory=Stats)
    in_flight: deque[Call] = field(default_factory=deque)

    def track(self, call: Call) -> None:
        """Remember a call until it is done; with too many in flight, wait for the oldest."""
        while self.in_flight and self.in_flight[0].done():
            self._settle(self.in_flight.popleft())
        while len(self.in_flight) >= _MAX_IN_FLIGHT:
            oldest = self.in_flight.popleft()
            oldest.settle()
            self._settle(oldest)
        self.in_flight.append(call)

    def _settle(self, call: Call) -> None:
        if call.failed() and not call.looked_at:
            _log.error("a call failed and nobody looked at its result: %s", call.failure_text())


_runtime: Runtime | None = None


def initialize(
    mode: str = "local",
    *,
    groups: Sequence[DeviceGroup] | None = None,
    global_device_mesh: DeviceMesh | None = None,
    lazy_collect: bool = True,
    seed: int = 42,
    **backend_options: Any,
) -> None:
    """Set up where components run; once per program, before the first component with a `remote_group`.

    A second call with the same arguments does nothing.

    Args:
        mode: "local" (this process; under torchrun, all of its processes together), "threads" (each rank a thread of
            this process), "ray" (twinkle-ray), or another installed backend.
        groups: The groups that components can be placed on. In "local" mode None allows any name.
        global_device_mesh: Mesh of components that are given none and whose group has as many workers.
        lazy_collect: Whether results stay on the workers until used, where a function does not say.
        seed: Seed of Python's, numpy's and torch's random numbers on every worker, at its start.
        **backend_options: Options of the backend.

    Raises:
        AlreadyInitializedError: Called before with other arguments.
        BackendError: There is no such backend, or it does not take an option.
        PlacementError: The groups cannot be placed.
    """
    global _runtime  # one runtime per process is the contract
    arguments = {
        "mode": mode,
        "groups": tuple(groups or ()),
        "global_device_mesh": global_device_mesh,
        "lazy_collect": lazy_collect,
        "seed": seed,
        **backend_options,
    }
    if _runtime is not None:
        _refuse_difference(_runtime.arguments, arguments)
        return
    names = [group.name for group in groups or ()]
    if len(set(names)) != len(names):
        raise ValueError(f"groups have names of their own, got {names}")
    factory = _factory(mode)
    try:
        backend = factory(tuple(groups or ()), seed=seed, **backend_options)
    except TypeError as error:
        if "unexpected keyword argument" in str(error) and backend_options:
            raise BackendError(
                f"backend {mode!r} does not take one of the options {list(backend_options)}: {error}"
            ) from None
        raise
    by_name = {group.name: group for group in groups or ()}
    _runtime = Runtime(mode, backend, by_name, global_device_mesh, lazy_collect, arguments)
    atexit.register(shutdown)


def shutdown() -> None:
    """End every worker and give everything back; safe at exit, after errors, and twice."""
    global _runtime  # one runtime per process is the contract
    runtime, _runtime = _runtime, None
    atexit.unregister(shutdown)
    if runtime is not None:
        runtime.in_flight.clear()
        runtime.backend.close()


@contextmanager
def session(mode: str = "local", **arguments: Any) -> Iterator[None]:
    """`initialize` for a block, `shutdown` at its end, also after an error.

    Args:
        mode: As for `initialize`.
        **arguments: As for `initialize`.
    """
    initialize(mode, **arguments)
    try:
        yield
    finally:
        shutdown()


def stats() -> Sequence[CallRecord]:
    """Figures of the latest calls, the oldest first: who moved how many bytes, and how long it took."""
    active = running()
    for call in tuple(active.in_flight):
        call.done()
    return active.stats.records()


def running() -> Runtime:
    """The runtime.

    Raises:
        NotInitializedError: There is none.
    """
    if _runtime is None:
        raise NotInitializedError("twinkle is not initialized: call twinkle.initialize(mode, groups=[...]) first")
    return _runtime


def active() -> Runtime | None:
    """The runtime, or None."""
    return _runtime


def attach(mode: str, backend: Backend) -> None:
    """Give a worker process the runtime with which its components call those of other groups."""
    global _runtime  # one runtime per process is the contract
    _runtime = Runtime(mode, backend, arguments={"mode": mode})


def _refuse_difference(before: dict[str, Any], now: dict[str, Any]) -> None:
    changed = [key for key in before.keys() | now.keys() if before.get(key) != now.get(key)]
    if changed:
        listing = "; ".join(f"{key}: {before.get(key)!r} before, {now.get(key)!r} now" for key in sorted(changed))
        raise AlreadyInitializedError(f"twinkle is initialized with other arguments ({listing}); call shutdown() first")


def _factory(mode: str) -> BackendFactory:
    from importlib.metadata import entry_points  # a fifth of this package's import time

    found = {entry.name: entry for entry in entry_points(group="twinkle.backends")}
    if mode in found:
        return cast("BackendFactory", found[mode].load())
    if mode in _PROVIDERS:
        raise BackendError(f"backend {mode!r} is not installed: pip install {_PROVIDERS[mode]}")
    raise BackendError(f"mode={mode!r} is not a backend: installed are {', '.join(map(repr, sorted(found)))}")
