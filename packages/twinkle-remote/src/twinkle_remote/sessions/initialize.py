"""The session of a program: `initialize`, `shutdown`, and `session` for both around a block."""

from __future__ import annotations

import atexit
import inspect
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypedDict

from twinkle_mesh import DeviceGroup
from twinkle_remote.context import current_worker
from twinkle_remote.errors import AlreadyInitializedError, BackendError, TwinkleError
from twinkle_remote.protocol.messages import MAX_IN_FLIGHT, SessionDefaults
from twinkle_remote.serving import not_installed
from twinkle_remote.sessions.seeding import begin_session, check_seed
from twinkle_remote.sessions.session import Runtime, active, install, remove
from twinkle_remote.worker.replay import SavedFailures, end_definitions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Unpack

    from twinkle_remote.protocol.backend import Backend


_INTERRUPTED = 130  # the convention of shells: 128 + the number of SIGINT


def ended_by_error() -> bool:
    """Whether an uncaught error ended the program; an error at an interactive prompt did not."""
    return hasattr(sys, "last_value") and not (hasattr(sys, "ps1") or sys.flags.interactive)


def exit_with(error: BaseException) -> None:
    """Print an error, and end the process with the error's exit status after all other functions of `atexit`.

    The interpreter ignores exceptions of such functions. After them it flushes the standard streams, then it clears the
    modules, `sys` among the last: what is kept there ends the process.
    """
    sys.excepthook(type(error), error, error.__traceback__)
    vars(sys)["twinkle_exit"] = _Exit(_INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1)


class _Exit:
    """An object whose deletion ends the process."""

    def __init__(self, status: int) -> None:
        self._exit, self._status = os._exit, status

    def __del__(self) -> None:
        self._exit(self._status)


class BackendOptions(TypedDict, total=False):
    """The options of the built-in backends: each mode takes all of them."""

    exchange_timeout: float
    start_timeout: float | None
    close_timeout: float
    address: str | None
    placement_timeout: float
    env_allow: str | Sequence[str]
    restart: Literal["group"] | None
    colocate: Sequence[Sequence[str]]
    ray_options: Mapping[str, Any] | None
    token: str
    tls: str | None
    insecure: bool
    patience: float


class SessionOptions(BackendOptions, total=False):
    """The keywords of `initialize`, for `session`."""

    groups: Sequence[DeviceGroup] | None
    lazy_collect: bool
    seed: SupportsIndex
    max_in_flight: int
    save_failures: str | os.PathLike[str] | None


_PROVIDERS = {"http": "twinkle-http", "ray": "twinkle-ray"}


def initialize(
    mode: str = "local",
    *,
    groups: Sequence[DeviceGroup] | None = None,
    lazy_collect: bool = True,
    seed: SupportsIndex = 42,
    max_in_flight: int = MAX_IN_FLIGHT,
    save_failures: str | os.PathLike[str] | None = None,
    **backend_options: Unpack[BackendOptions],
) -> None:
    """Start the session of a program: the backend and its groups of workers.

    A second call with the same arguments does nothing. Options of another built-in backend have no effect, so that the
    same program runs in every mode.

    Args:
        mode: "local" (this process; under torchrun, all of its processes together), "threads" (each rank a thread of
            this process), "ray" (twinkle-ray), or another installed backend.
        groups: The groups that components can be placed on. In "local" mode None allows any name.
        lazy_collect: Whether results stay on the workers until they are used, where a function does not say.
        seed: Seed of Python's, numpy's and torch's generators, where they are loaded, from 0 to 2**32 - 1: at the start
            of a worker, and plus the number of the component before each constructor, alike on all ranks.
        max_in_flight: Calls that one caller may have in flight in one group, at or above 1; one more waits.
        save_failures: A private folder (on Ray of the worker's node) in which workers save each call that raises, for
            `twinkle replay FILE`; the error names the file. No effect in "local" and "http".
        **backend_options: Options of the backend.

    Raises:
        AlreadyInitializedError: It was called before with other arguments.
        BackendError: There is no such backend, or neither it nor a built-in one takes an option.
        PlacementError: The groups cannot be placed.
    """
    end_definitions()
    by_name, seed = _by_name(() if groups is None else groups), check_seed(seed)
    arguments = {
        "mode": mode,
        "groups": tuple(by_name.values()),
        "lazy_collect": lazy_collect,
        "seed": seed,
        "max_in_flight": max_in_flight,
        "save_failures": save_failures,
        **backend_options,
    }
    if (before := active()) is not None:
        _refuse_difference(before.arguments, arguments)
        return
    if type(max_in_flight) is not int or max_in_flight < 1:
        raise ValueError(f"max_in_flight={max_in_flight!r} is not valid: it is a number of calls, at or above 1")
    factory = _factory(mode)
    backend = factory(arguments["groups"], seed=seed, **_options_of(mode, factory, backend_options))
    begin_session(seed)
    saving = None if save_failures is None or backend.in_process else _saving(save_failures, seed)
    defaults = SessionDefaults(lazy_collect, max_in_flight, saving)
    try:
        backend.configure(defaults)
    except BaseException:
        backend.close()
        raise
    install(Runtime(mode, backend, by_name, defaults, arguments))
    atexit.register(_at_exit)


def shutdown() -> None:
    """End every worker and release all resources; safe at exit, after errors, and twice.

    It waits for every call in flight, also for those that workers made, so that a checkpoint is written to its end. It
    does not wait for calls that failed or are past their deadline. It raises the first failure that no caller has seen.
    Results that were not fetched before are lost.

    Raises:
        CallTimeoutError: A call that no caller waited for exceeded its deadline.
        TwinkleError: A call that no caller waited for failed: the error that the call itself raises. Or this process is
            a worker.
    """
    if active() is not None and current_worker().rank is not None:
        raise TwinkleError(f"shutdown() is for the program that called initialize(), not for {current_worker()}")
    _end(active())


def _end(runtime: Runtime | None, *, quietly: bool = False) -> None:
    """End a session; it stays the current one until its calls are done, because they may make calls.

    Args:
        runtime: Its runtime.
        quietly: The program ends with another error: calls are given up, failed ones logged, and nothing is raised.
    """
    if runtime is None or runtime.closed:
        return
    atexit.unregister(_at_exit)
    runtime.streams.close()
    try:
        runtime.in_flight.end(quietly=quietly)
    finally:
        runtime.in_flight.cancel()
        remove(runtime)
        runtime.backend.close()


def _at_exit() -> None:
    """End a session that the program did not end; a failure sets the exit status of the program."""
    if ended_by_error():
        _end(active(), quietly=True)
        return
    try:
        _end(active())
    except BaseException as error:  # an interrupt too: no later code would report it
        exit_with(error)


@contextmanager
def session(mode: str = "local", **options: Unpack[SessionOptions]) -> Iterator[None]:
    """`initialize` for a block, and `shutdown` at its end; does nothing inside a session with the same arguments.

    A block that ends by an exception abandons its calls in flight; `sys.exit(0)` is a normal end.
    """
    before = active()
    initialize(mode, **options)
    begun = active() if active() is not before else None
    try:
        yield
    except BaseException as error:
        is_normal = isinstance(error, SystemExit) and error.code in (None, 0)
        _end(begun, quietly=not is_normal)
        raise
    _end(begun)


def _refuse_difference(before: dict[str, Any], now: dict[str, Any]) -> None:
    changed = [key for key in before.keys() | now.keys() if before.get(key) != now.get(key)]
    if changed:
        listing = "; ".join(f"{key}: {_shown(key, before)} before, {_shown(key, now)} now" for key in sorted(changed))
        raise AlreadyInitializedError(f"twinkle is initialized with other arguments ({listing}); call shutdown() first")


def _saving(folder: str | os.PathLike[str], seed: int) -> SavedFailures:
    """Where workers save calls that fail."""
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


def _factory(mode: str) -> Callable[..., Backend]:
    from importlib.metadata import entry_points  # its import takes tens of milliseconds

    found = {entry.name: entry for entry in entry_points(group="twinkle.backends")}
    if mode in found:
        factory: Callable[..., Backend] = found[mode].load()
        return factory
    if mode in _PROVIDERS:
        raise BackendError(not_installed(f"backend {mode!r}", _PROVIDERS[mode]))
    raise BackendError(f"mode={mode!r} is not a backend: installed are {', '.join(map(repr, sorted(found)))}")


def _options_of(mode: str, factory: Callable[..., Backend], options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Those of the options that the backend takes; the others have to be options of another built-in backend."""
    parameters = inspect.signature(factory).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return options
    own = [name for name in _keywords(factory) if name != "seed"]
    unknown = [name for name in options if name not in own and name not in BackendOptions.__annotations__]
    if unknown:
        raise BackendError(
            f"backend {mode!r} does not take {', '.join(unknown)}; its options are {', '.join(own) or 'none'}, "
            f"with those of any session: {', '.join(_keywords(initialize))}"
        )
    return {name: value for name, value in options.items() if name in own}


def _keywords(function: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(function).parameters
    return [name for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY]
