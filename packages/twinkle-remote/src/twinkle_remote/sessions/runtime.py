"""The one runtime of a process: which backend, which groups, which defaults; from `initialize` to `shutdown`."""

from __future__ import annotations

import atexit
import inspect
import logging
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, SupportsIndex, cast

from twinkle_mesh import DeviceGroup
from twinkle_remote.context import current_worker
from twinkle_remote.errors import AlreadyInitializedError, BackendError, NotInitializedError, TwinkleError
from twinkle_remote.protocol.component import forget_all
from twinkle_remote.sessions.pending_calls import InFlight, names_of
from twinkle_remote.sessions.stats import CallRecord, Stats
from twinkle_remote.worker.seeding import check_seed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from twinkle_mesh import DeviceMesh
    from twinkle_remote.protocol.backend import Backend, BackendFactory

_log = logging.getLogger("twinkle.remote")
_PROVIDERS = {"ray": "twinkle-ray"}


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
        in_flight: Calls that are not known to be done.
        closed: `shutdown` has begun.
    """

    mode: str
    backend: Backend
    groups: dict[str, DeviceGroup] = field(default_factory=dict)
    mesh: DeviceMesh | None = None
    lazy_collect: bool = True
    arguments: dict[str, Any] = field(default_factory=dict)
    stats: Stats = field(default_factory=Stats)
    in_flight: InFlight = field(init=False)
    closed: bool = False

    def __post_init__(self) -> None:
        self.in_flight = InFlight(self.backend)


_runtime: Runtime | None = None


def initialize(
    mode: str = "local",
    *,
    groups: Sequence[DeviceGroup] | None = None,
    global_device_mesh: DeviceMesh | None = None,
    lazy_collect: bool = True,
    seed: SupportsIndex = 42,
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
        seed: Seed of Python's, numpy's and torch's random numbers on every worker, from 0 to 2**32 - 1; the same on all
            ranks. numpy and torch are seeded when they are loaded, where that is later.
        **backend_options: Options of the backend.

    Raises:
        AlreadyInitializedError: Called before with other arguments.
        BackendError: There is no such backend, or it does not take an option.
        PlacementError: The groups cannot be placed.
    """
    global _runtime  # one runtime per process is the contract
    by_name = _by_name(() if groups is None else groups)
    seed = check_seed(seed)
    arguments = {
        "mode": mode,
        "groups": tuple(by_name.values()),
        "global_device_mesh": global_device_mesh,
        "lazy_collect": lazy_collect,
        "seed": seed,
        **backend_options,
    }
    if _runtime is not None:
        _refuse_difference(_runtime.arguments, arguments)
        return
    factory = _factory(mode)
    _check_options(mode, factory, backend_options)
    backend = factory(tuple(by_name.values()), seed=seed, **backend_options)
    _runtime = Runtime(mode, backend, by_name, global_device_mesh, lazy_collect, arguments)
    atexit.register(_at_exit)


def shutdown(drain: float = 60.0) -> None:
    """End every worker and give everything back; safe at exit, after errors, and twice.

    Calls in flight are waited for, so that a checkpoint that is being written is written; not those that failed or are
    past their deadline, and none at all when the program ends with an error. What was not fetched by then is gone.

    Args:
        drain: Seconds that calls in flight are given; 0 gives them none.

    Raises:
        TwinkleError: It was called on a worker.
    """
    global _runtime  # one runtime per process is the contract
    if _runtime is not None and current_worker().rank is not None:
        raise TwinkleError(f"shutdown() is for the program that called initialize(), not for {current_worker()}")
    runtime, _runtime = _runtime, None
    atexit.unregister(_at_exit)
    if runtime is None:
        return
    try:
        lost = runtime.in_flight.drain(drain)
        if lost:
            _log.warning("shutdown: %s in flight, the results are lost", names_of(lost))
        runtime.in_flight.tell_all()
    finally:
        runtime.closed = runtime.in_flight.closed = True
        forget_all()
        runtime.backend.close()


def _at_exit() -> None:
    """`shutdown`; a program that ends with an uncaught error waits for nothing."""
    shutdown(0.0 if hasattr(sys, "last_value") else 60.0)


@contextmanager
def session(
    mode: str = "local",
    *,
    groups: Sequence[DeviceGroup] | None = None,
    global_device_mesh: DeviceMesh | None = None,
    lazy_collect: bool = True,
    seed: SupportsIndex = 42,
    **backend_options: Any,
) -> Iterator[None]:
    """`initialize` for a block, and `shutdown` at its end, also after an error; nothing inside of an equal session.

    Args:
        mode: As for `initialize`, and so are the others.
        groups: As there.
        global_device_mesh: As there.
        lazy_collect: As there.
        seed: As there.
        **backend_options: As there.
    """
    before = _runtime
    initialize(
        mode,
        groups=groups,
        global_device_mesh=global_device_mesh,
        lazy_collect=lazy_collect,
        seed=seed,
        **backend_options,
    )
    begun = _runtime is not before
    try:
        yield
    except BaseException:
        if begun:
            shutdown(0.0)
        raise
    if begun:
        shutdown()


def stats() -> Sequence[CallRecord]:
    """Figures of the latest calls, the oldest first: who moved how many bytes, and how long it took."""
    runtime = running()
    runtime.in_flight.poll()
    return runtime.stats.records()


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


def _by_name(groups: Sequence[DeviceGroup]) -> dict[str, DeviceGroup]:
    if not isinstance(groups, list | tuple) or not all(isinstance(group, DeviceGroup) for group in groups):
        raise TypeError(f"groups is a list of DeviceGroup(name, ranks, device_type), got {groups!r:.80}")
    names = [group.name for group in groups]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"each group has a name of its own, but {', '.join(map(repr, twice))} is there twice in {names}"
        )
    return dict(zip(names, groups, strict=True))


def _factory(mode: str) -> BackendFactory:
    from importlib.metadata import entry_points  # costs tens of milliseconds, and only a program that runs needs it

    found = {entry.name: entry for entry in entry_points(group="twinkle.backends")}
    if mode in found:
        return cast("BackendFactory", found[mode].load())
    if mode in _PROVIDERS:
        raise BackendError(f"backend {mode!r} is not installed: pip install {_PROVIDERS[mode]}")
    raise BackendError(f"mode={mode!r} is not a backend: installed are {', '.join(map(repr, sorted(found)))}")


def _check_options(mode: str, factory: BackendFactory, options: dict[str, Any]) -> None:
    parameters = inspect.signature(factory).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    known = [
        name for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY and name != "seed"
    ]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise BackendError(
            f"backend {mode!r} does not take {', '.join(unknown)}; its options are {', '.join(known) or 'none'}"
        )
