"""The session of a program: `initialize`, `shutdown`, and `session` for both around a block."""

from __future__ import annotations

import atexit
import inspect
import os
import sys
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, Unpack, overload

from twinkle_mesh import DeviceGroup
from twinkle_remote.context import caller
from twinkle_remote.errors import AlreadyInitializedError, BackendError, TwinkleError
from twinkle_remote.protocol.backend import InProcessBackend
from twinkle_remote.protocol.defaults import MAX_IN_FLIGHT, SavedFailures, SessionDefaults
from twinkle_remote.protocol.served import ServedBackend
from twinkle_remote.serving import not_installed
from twinkle_remote.sessions.current import active, install, remove
from twinkle_remote.sessions.definitions import end_of_definitions
from twinkle_remote.sessions.exit_status import ended_by_error, exit_with
from twinkle_remote.sessions.forked import renew_threads_of_torch
from twinkle_remote.sessions.in_flight.end_calls import cancel_calls, end_calls
from twinkle_remote.sessions.runtime import Runtime
from twinkle_remote.sessions.seeding import check_seed
from twinkle_remote.sessions.signals.background import close_all
from twinkle_remote.sessions.worker_logging import logging_here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from twinkle_mesh import DeviceMesh
    from twinkle_remote.protocol.backend import Backend, BackendFactory
    from twinkle_remote.sessions.options import (
        HttpOptions,
        LocalOptions,
        RayOptions,
        SessionOptions,
        ThreadsOptions,
    )

_PROVIDERS = {"http": "twinkle-http", "ray": "twinkle-ray"}


@overload
def initialize(mode: Literal["local"] = "local", **options: Unpack[LocalOptions]) -> None: ...
@overload
def initialize(mode: Literal["threads"], **options: Unpack[ThreadsOptions]) -> None: ...
@overload
def initialize(mode: Literal["ray"], **options: Unpack[RayOptions]) -> None: ...
@overload
def initialize(mode: Literal["http"], **options: Unpack[HttpOptions]) -> None: ...
@overload
def initialize(mode: str, **options: Unpack[SessionOptions]) -> None: ...
def initialize(
    mode: str = "local",
    *,
    groups: Sequence[DeviceGroup] | None = None,
    global_device_mesh: DeviceMesh | None = None,
    lazy_collect: bool = True,
    seed: SupportsIndex = 42,
    max_in_flight: int = MAX_IN_FLIGHT,
    save_failures: str | os.PathLike[str] | None = None,
    **backend_options: Any,
) -> None:
    """Start the session of a program: the backend and its groups of workers.

    Call it once, before the first component with a `remote_group`; a second call with the same arguments does nothing.
    A type checker knows the options of a literal mode; pass others as `**options`, from a `dict[str, Any]`.

    Args:
        mode: "local" (this process; under torchrun, all of its processes together), "threads" (each rank a thread of
            this process), "ray" (twinkle-ray), or another installed backend.
        groups: The groups that components can be placed on. In "local" mode None allows any name.
        global_device_mesh: Mesh of components without a mesh of their own, if it has the size of their group.
        lazy_collect: Whether results stay on the workers until they are used; an option of a function takes precedence.
        seed: Seed of Python's, numpy's and torch's random numbers on every worker, from 0 to 2**32 - 1; the same on all
            ranks. If numpy or torch is loaded later, it is seeded then.
        max_in_flight: Number of calls that one caller may have in flight in one group, at or above 1. One more call
            waits until one is done.
        save_failures: A private folder in which workers save each call that raises, with its rank's arguments and its
            constructor's, for `twinkle replay FILE`; the error names the file. On Ray it is on the worker's node.
        **backend_options: Options of the backend.

    Raises:
        AlreadyInitializedError: It was called before with other arguments.
        BackendError: There is no such backend, or it does not take an option.
        PlacementError: The groups cannot be placed.
    """
    end_of_definitions()
    renew_threads_of_torch()
    by_name = _by_name(() if groups is None else groups)
    seed = check_seed(seed)
    arguments = {
        "mode": mode,
        "groups": tuple(by_name.values()),
        "global_device_mesh": global_device_mesh,
        "lazy_collect": lazy_collect,
        "seed": seed,
        "max_in_flight": max_in_flight,
        "save_failures": save_failures,
        **backend_options,
    }
    before = active()
    if before is not None:
        _refuse_difference(before.arguments, arguments)
        return
    _check_limit(max_in_flight)
    factory = _factory(mode, backend_options)
    backend = factory(tuple(by_name.values()), seed=seed, **backend_options)
    shared = (global_device_mesh, lazy_collect, max_in_flight)
    defaults = _configured(backend, SessionDefaults(*shared), save_failures, seed)
    install(Runtime(mode, backend, by_name, *shared, arguments, saving=defaults.saving))
    atexit.register(_at_exit)


def shutdown(drain: float | None = None) -> None:
    """End every worker and release all resources; safe at exit, after errors, and twice.

    It waits for every call in flight, also for those that workers made, so that a checkpoint is written to its end. It
    does not wait for calls that failed or are past their deadline. It raises the first failure that no caller has seen.
    Results that were not fetched before are lost.

    Args:
        drain: Seconds to wait for calls in flight; None for no limit, 0 to abandon them.

    Raises:
        CallTimeoutError: The calls in flight took longer than `drain` (above 0), or a call that no caller waited for
            exceeded its deadline.
        TwinkleError: A call that no caller waited for failed: the error that the call itself raises. Or this process is
            a worker.
    """
    if active() is not None and caller().rank is not None:
        raise TwinkleError(f"shutdown() is for the program that called initialize(), not for {caller()}")
    _end(active(), drain, quietly=False)


def _end(runtime: Runtime | None, drain: float | None, *, quietly: bool) -> None:
    """End a session.

    Args:
        runtime: Its runtime; it stays the current one until its calls are done, because they may make calls.
        drain: As for `shutdown`.
        quietly: The program ends with another error: lost and failed calls are logged, and nothing is raised.
    """
    if runtime is None or runtime.closed:
        return
    atexit.unregister(_at_exit)
    runtime.streams.close()
    try:
        if not quietly:
            close_all()
        end_calls(runtime, drain, quietly=quietly)
    finally:
        cancel_calls(runtime)
        remove(runtime)
        runtime.backend.close()


def _at_exit() -> None:
    """End a session that the program did not end; a failure sets the exit status of the program."""
    if ended_by_error():
        _end(active(), 0.0, quietly=True)
        return
    try:
        _end(active(), None, quietly=False)
    except BaseException as error:  # an interrupt too: no later code would report it
        exit_with(error)


@overload
def session(mode: Literal["local"] = "local", **options: Unpack[LocalOptions]) -> AbstractContextManager[None]: ...
@overload
def session(mode: Literal["threads"], **options: Unpack[ThreadsOptions]) -> AbstractContextManager[None]: ...
@overload
def session(mode: Literal["ray"], **options: Unpack[RayOptions]) -> AbstractContextManager[None]: ...
@overload
def session(mode: Literal["http"], **options: Unpack[HttpOptions]) -> AbstractContextManager[None]: ...
@overload
def session(mode: str, **options: Unpack[SessionOptions]) -> AbstractContextManager[None]: ...
@contextmanager
def session(mode: str = "local", **options: Any) -> Iterator[None]:
    """`initialize` for a block, and `shutdown` at its end; does nothing inside a session with the same arguments.

    A block that ends by an exception abandons its calls in flight; `sys.exit(0)` is a normal end.

    Args:
        mode: As for `initialize`.
        **options: As for `initialize`.
    """
    before = active()
    initialize(mode, **options)
    begun = active() if active() is not before else None
    try:
        yield
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code in (None, 0):
            _end(begun, None, quietly=False)
        else:
            _end(begun, 0.0, quietly=True)
        raise
    _end(begun, None, quietly=False)


def _refuse_difference(before: dict[str, Any], now: dict[str, Any]) -> None:
    changed = [key for key in before.keys() | now.keys() if before.get(key) != now.get(key)]
    if changed:
        listing = "; ".join(f"{key}: {_shown(key, before)} before, {_shown(key, now)} now" for key in sorted(changed))
        raise AlreadyInitializedError(f"twinkle is initialized with other arguments ({listing}); call shutdown() first")


def _check_limit(max_in_flight: object) -> None:
    if type(max_in_flight) is not int or max_in_flight < 1:
        raise ValueError(f"max_in_flight={max_in_flight!r} is not valid: it is a number of calls, at or above 1")


def _configured(
    backend: Backend, defaults: SessionDefaults, folder: str | os.PathLike[str] | None, seed: int
) -> SessionDefaults:
    """Give a backend the defaults, completed by a folder and a seed for calls that fail; it is closed on an error."""
    try:
        if folder is not None:
            defaults = replace(defaults, saving=_saving(backend, folder, seed))
        defaults = replace(defaults, logging=logging_here())
        backend.configure(defaults)
    except BaseException:
        backend.close()
        raise
    return defaults


def _saving(backend: Backend, folder: str | os.PathLike[str], seed: int) -> SavedFailures:
    """Where workers save calls that fail.

    Raises:
        BackendError: The calls of the backend do not run on workers of this session.
    """
    if isinstance(backend, InProcessBackend | ServedBackend):
        raise BackendError(
            'save_failures= is for "threads" and "ray": a call of "local" fails in this process, where `python -m pdb` '
            "stops at it, and a server saves calls where it is initialized so"
        )
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    paths = tuple(os.path.abspath(path) for path in sys.path)
    program = os.path.abspath(main) if main else ""
    return SavedFailures(os.path.abspath(folder), seed, program, tuple(sys.argv[1:]), paths)


def _shown(key: str, arguments: dict[str, Any]) -> str:
    return "another one" if key == "token" and arguments.get(key) is not None else repr(arguments.get(key))


def _by_name(groups: Sequence[DeviceGroup]) -> dict[str, DeviceGroup]:
    if not isinstance(groups, list | tuple) or not all(isinstance(group, DeviceGroup) for group in groups):
        raise TypeError(f"groups is a list of DeviceGroup(name, ranks, device_type), got {groups!r:.80}")
    names = [group.name for group in groups]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"each group needs a different name, but {', '.join(map(repr, twice))} is there twice in {names}"
        )
    return dict(zip(names, groups, strict=True))


def _factory(mode: str, options: Mapping[str, Any]) -> BackendFactory:
    """The backend of a mode, which takes these options."""
    from importlib.metadata import entry_points  # its import takes tens of milliseconds

    found = {entry.name: entry for entry in entry_points(group="twinkle.backends")}
    if mode in found:
        factory: BackendFactory = found[mode].load()
        _check_options(mode, factory, options)
        return factory
    if mode in _PROVIDERS:
        raise BackendError(not_installed(f"backend {mode!r}", _PROVIDERS[mode]))
    raise BackendError(f"mode={mode!r} is not a backend: installed are {', '.join(map(repr, sorted(found)))}")


def _check_options(mode: str, factory: BackendFactory, options: Mapping[str, Any]) -> None:
    parameters = inspect.signature(factory).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    known = [name for name in _keywords(factory) if name != "seed"]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise BackendError(
            f"backend {mode!r} does not take {', '.join(unknown)}; its options are {', '.join(known) or 'none'}, "
            f"with those of any session: {', '.join(_keywords(initialize))}"
        )


def _keywords(function: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(function).parameters
    return [name for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY]
