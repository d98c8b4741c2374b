"""The one runtime of a process: which backend, which groups, which defaults; from `initialize` to `shutdown`."""

from __future__ import annotations

import atexit
import inspect
import logging
import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, SupportsIndex, cast

from twinkle_mesh import DeviceGroup
from twinkle_remote.context import current_worker
from twinkle_remote.errors import (
    AlreadyInitializedError,
    BackendError,
    CallTimeoutError,
    NotInitializedError,
    TwinkleError,
)
from twinkle_remote.protocol.component import forget_all
from twinkle_remote.sessions.exit_status import ended_by_error, exit_with
from twinkle_remote.sessions.pending_calls import MAX_IN_FLIGHT, InFlight, names_of
from twinkle_remote.sessions.stats import CallRecord, Stats
from twinkle_remote.worker.seeding import check_seed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from twinkle_mesh import DeviceMesh
    from twinkle_remote.call.pending_call import Call
    from twinkle_remote.protocol.backend import Backend, BackendFactory
    from twinkle_remote.protocol.component import Component

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
        max_in_flight: Calls that one caller may have in flight in one group.
        arguments: What `initialize` was called with.
        stats: Figures of the latest calls.
        in_flight: Calls that are not known to be done.
        closed: `shutdown` is over, or this process was forked from the one that has the session.
        parent: Process id of that one; 0 where it is this.
    """

    mode: str
    backend: Backend
    groups: dict[str, DeviceGroup] = field(default_factory=dict)
    mesh: DeviceMesh | None = None
    lazy_collect: bool = True
    max_in_flight: int = MAX_IN_FLIGHT
    arguments: dict[str, Any] = field(default_factory=dict)
    stats: Stats = field(default_factory=Stats)
    in_flight: InFlight = field(init=False)
    closed: bool = False
    parent: int = 0
    _released: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.in_flight = InFlight(self.backend, self.max_in_flight)

    def mark_released(self, component: Component) -> None:
        """Refuse calls of a component from now on."""
        self._released.add((component.group, component.instance))

    def call_completed(self, call: Call) -> None:
        """Take a completed call off those in flight; its failure is kept until a caller was given it."""
        self.in_flight.completed(call)

    def call_seen(self, call: Call) -> None:
        """A caller was given the failure of a call."""
        self.in_flight.seen(call)

    def is_released(self, component: Component) -> bool:
        """Whether this process released it; the workers know of all that are."""
        return (component.group, component.instance) in self._released

    def refusal(self, what: str) -> str:
        """Why something of a closed session cannot be had, and what would do.

        Args:
            what: The result of a call.
        """
        if self.parent:
            return f"{what} cannot be fetched here: {forked_from(self.parent)}"
        return f"twinkle was shut down before {what} was fetched"


_runtime: Runtime | None = None
_parent = 0  # the process whose session this one was forked from, and cannot use


def initialize(
    mode: str = "local",
    *,
    groups: Sequence[DeviceGroup] | None = None,
    global_device_mesh: DeviceMesh | None = None,
    lazy_collect: bool = True,
    seed: SupportsIndex = 42,
    max_in_flight: int = MAX_IN_FLIGHT,
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
        max_in_flight: Calls that may be in flight in one group, at or above 1; making one more waits until one is done.
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
        "max_in_flight": max_in_flight,
        **backend_options,
    }
    if _runtime is not None:
        _refuse_difference(_runtime.arguments, arguments)
        return
    if type(max_in_flight) is not int or max_in_flight < 1:
        raise ValueError(f"max_in_flight={max_in_flight!r} is not valid: it is a number of calls, at or above 1")
    factory = _factory(mode)
    _check_options(mode, factory, backend_options)
    backend = factory(tuple(by_name.values()), seed=seed, **backend_options)
    _runtime = Runtime(mode, backend, by_name, global_device_mesh, lazy_collect, max_in_flight, arguments)
    atexit.register(_at_exit)


def shutdown(drain: float | None = None) -> None:
    """End every worker and give everything back; safe at exit, after errors, and twice.

    It waits for every call in flight, however long, so that a checkpoint that is being written is written, and raises
    the first failure that nobody was given. It waits for no call that failed or is past its deadline. A result that was
    not fetched by then is gone.

    Args:
        drain: Seconds that calls in flight are given at most; None for as long as they take, 0 to give them up.

    Raises:
        CallTimeoutError: The calls in flight took longer than `drain` (above 0), or a call that nobody had waited for
            is past its deadline.
        TwinkleError: A call that nobody had waited for failed; as the call would have raised it. Or this is a worker.
    """
    if _runtime is not None and current_worker().rank is not None:
        raise TwinkleError(f"shutdown() is for the program that called initialize(), not for {current_worker()}")
    _end(_runtime, drain, quietly=False)


def _end(runtime: Runtime | None, drain: float | None, *, quietly: bool) -> None:
    """End a session.

    Args:
        runtime: Its runtime; it is the current one until its calls are done, since they may make others.
        drain: As for `shutdown`.
        quietly: An error is on its way already: what is lost or failed is logged, and nothing is raised.
    """
    global _runtime  # one runtime per process is the contract
    if runtime is None or runtime.closed:
        return
    atexit.unregister(_at_exit)
    try:
        lost = runtime.in_flight.drain(drain)
        if lost:
            _log.warning("shutdown: %s in flight, the results are lost", names_of(lost))
        if quietly:
            runtime.in_flight.tell_unseen()
            return
        runtime.in_flight.raise_unseen()
        if lost and drain:
            given_up = names_of(lost, "was", "were")
            raise CallTimeoutError(f"shutdown: {given_up} not done after {drain:g} s, and given up")
    finally:
        if _runtime is runtime:
            _runtime = None
        runtime.closed = runtime.in_flight.closed = True
        forget_all()
        runtime.backend.close()


def _at_exit() -> None:
    """End the session that a program left open; its failure is the program's, exit status included."""
    if ended_by_error():
        _end(_runtime, 0.0, quietly=True)
        return
    try:
        _end(_runtime, None, quietly=False)
    except BaseException as error:  # an interrupt too: after this nothing reports it
        exit_with(error)


@contextmanager
def session(
    mode: str = "local",
    *,
    groups: Sequence[DeviceGroup] | None = None,
    global_device_mesh: DeviceMesh | None = None,
    lazy_collect: bool = True,
    seed: SupportsIndex = 42,
    max_in_flight: int = MAX_IN_FLIGHT,
    **backend_options: Any,
) -> Iterator[None]:
    """`initialize` for a block, and `shutdown` at its end; nothing inside of an equal session.

    A block that ends by an exception gives up its calls in flight; `sys.exit(0)` is a normal end.

    Args:
        mode: As for `initialize`, and so are the others.
        groups: As there.
        global_device_mesh: As there.
        lazy_collect: As there.
        seed: As there.
        max_in_flight: As there.
        **backend_options: As there.
    """
    before = _runtime
    initialize(
        mode,
        groups=groups,
        global_device_mesh=global_device_mesh,
        lazy_collect=lazy_collect,
        seed=seed,
        max_in_flight=max_in_flight,
        **backend_options,
    )
    begun = _runtime if _runtime is not before else None
    try:
        yield
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code in (None, 0):
            _end(begun, None, quietly=False)
        else:
            _end(begun, 0.0, quietly=True)
        raise
    _end(begun, None, quietly=False)


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
        raise NotInitializedError(absence())
    return _runtime


def absence() -> str:
    """Why there is no runtime, and what would do."""
    if _parent:
        return forked_from(_parent)
    return "twinkle is not initialized: call twinkle.initialize(mode, groups=[DeviceGroup(...)]) first"


def forked_from(parent: int) -> str:
    """What a forked process cannot do, and what would do.

    Args:
        parent: The process that has the session.
    """
    return (
        f"process {os.getpid()} was forked from process {parent}, whose session works in that process alone: make the "
        'calls there and hand over their values, or start this process by multiprocessing.get_context("spawn")'
    )


def active() -> Runtime | None:
    """The runtime, or None."""
    return _runtime


def attach(mode: str, backend: Backend) -> None:
    """Give a worker process the runtime with which its components call those of other groups."""
    global _runtime  # one runtime per process is the contract
    _runtime = Runtime(mode, backend, arguments={"mode": mode})


def _after_fork() -> None:
    """In a forked process: leave the session to the parent; nothing here uses it, waits for it or ends it."""
    global _runtime, _parent  # one runtime per process is the contract
    if _runtime is None:
        return
    _runtime.in_flight = InFlight(_runtime.backend, _runtime.max_in_flight)  # another thread may have held its lock
    if _runtime.backend.after_fork():
        return
    atexit.unregister(_at_exit)
    _parent = _runtime.parent = os.getppid()
    _runtime.closed = _runtime.in_flight.closed = True
    _runtime = None
    forget_all()


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_after_fork)


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
