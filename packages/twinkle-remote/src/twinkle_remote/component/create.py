"""A component's begin and end: it is built on the workers of a group, or registered in this process, and released."""

from __future__ import annotations

import contextlib
import gc
import inspect
import itertools
import os
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from twinkle_mesh import DeviceMesh
from twinkle_remote.call.send import start
from twinkle_remote.component.constructor import GROUP, INSTANCE, MESH, constructor_signature, own_keywords, with_mesh
from twinkle_remote.component.handle import make_handle
from twinkle_remote.errors import PlacementError, TwinkleError
from twinkle_remote.failures.frames import call_line
from twinkle_remote.protocol.call import Call, Component, component_of, is_component_type, is_handle, remember
from twinkle_remote.protocol.spec import FunctionSpec, execute_of
from twinkle_remote.sessions.current import running
from twinkle_remote.sessions.seeding import next_component_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from twinkle_remote.call.pending import PendingCall
    from twinkle_remote.sessions.current import Runtime

P = ParamSpec("P")
T = TypeVar("T")

_DROP = FunctionSpec(dispatch="all")
_count = itertools.count()


def create(cls: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], runtime: Runtime) -> Any:
    """Build a component on a group, and make a handle of it.

    Args:
        cls: Its class.
        name: Name of the group.
        args: Positional arguments of the constructor.
        kwargs: Keyword arguments, including those of placement.
        runtime: The runtime of this process.
    """
    runtime.in_flight.raise_not_retrieved()
    group = runtime.backend.group(name)
    ranks = (0,) if execute_of(cls) == "first" else tuple(range(group.size))
    mesh = None if group.undivided else _fitting(cls, kwargs.get(MESH), name, group.size)
    component = Component(name, _instance(cls, kwargs, name, runtime), cls.__name__, ranks, mesh)
    if inspect.isabstract(cls):
        raise TypeError(f"{cls.__name__} is abstract: it lacks {', '.join(sorted(cls.__abstractmethods__))}")
    passed = with_mesh(cls, args, kwargs, mesh)
    signature = constructor_signature(cls)
    if signature is not None:
        try:
            signature.bind(*args, **own_keywords(cls, passed))
        except TypeError as error:
            raise TypeError(f"{cls.__name__}{signature}: {error}") from None
    spec = FunctionSpec(dispatch="all", sync=True, timeout=runtime.backend.start_timeout)
    names = [f"args[{i}]" for i in range(len(args))]
    seed = next_component_seed()
    call = Call("create", component, cls, f"{cls.__name__}.__init__", spec, call_line(), names, args, passed, seed=seed)
    pending = start(call, held=True)
    try:
        pending.wait()
    except PlacementError:  # the id is taken
        raise
    except BaseException:
        pending.prefetched = True
        with contextlib.suppress(TwinkleError):  # the group may have ended; the constructor's error counts
            start(Call("drop", component, None, call.name, _DROP, call.line), prefetched=True)
        raise
    return make_handle(cls, component)


def _instance(cls: type, kwargs: dict[str, Any], group: str, runtime: Runtime) -> str:
    """The id of a new component; one that was released lends its id to the next, and its handles stay refused."""
    given = kwargs.get(INSTANCE)
    if given is None:
        return f"{cls.__name__}-{os.getpid():x}-{os.urandom(4).hex()}-{next(_count)}"
    ids = itertools.chain([str(given)], (f"{given}#{i}" for i in itertools.count(2)))
    return next(one for one in ids if (group, one) not in runtime.released)


def _fitting(cls: type, mesh: DeviceMesh | None, group: str, size: int) -> DeviceMesh | None:
    """A mesh that fits a group.

    Raises:
        PlacementError: It does not.
    """
    if mesh is not None and execute_of(cls) == "all" and sorted(mesh.ranks) != list(range(size)):
        raise PlacementError(
            f"{cls.__name__}: device_mesh has {mesh.world_size} ranks and group {group!r} has {size} workers, ranks 0 "
            f"to {size - 1}; they must be the same: give the group ranks={mesh.world_size}, or the mesh "
            f"world_size={size}"
        )
    return mesh


def adopt(cls: Any, runtime: Runtime, name: str | None, kwargs: dict[str, Any], made: Any) -> Any:
    """Register an object of this process in local mode, so that its calls use dispatch and collect as well.

    All processes of a launcher hold a component with a group or a mesh, this process alone any other.

    Args:
        cls: Its class.
        runtime: The runtime of this process.
        name: Name of the group; None without one.
        kwargs: Keyword arguments of the constructor, including those of placement.
        made: The object, before its `__init__`.
    """
    if not isinstance(made, cls):
        return made
    if name is not None and runtime.groups and name not in runtime.groups:
        raise PlacementError(f"there is no group {name!r}; initialize was given {', '.join(map(repr, runtime.groups))}")
    backend = runtime.backend
    given = kwargs.get(MESH)
    mesh = given if isinstance(given, DeviceMesh) else None
    shared = name is not None or mesh is not None
    group = runtime.backend.group((name or "local") if shared else backend.own_group)
    if name in runtime.groups:
        mesh = _fitting(cls, mesh, group.name, runtime.groups[name].num_workers)
    if mesh is not None:
        mesh = _whole(mesh) if group.size == 1 else _fitting(cls, mesh, group.name, group.size)
    ranks = (backend.rank,) if not shared else (0,) if execute_of(cls) == "first" else tuple(range(group.size))
    component = Component(group.name, _instance(cls, kwargs, group.name, runtime), cls.__name__, ranks, mesh)
    if backend.adopt(group.name, component.instance, made, mesh):
        remember(made, component)
    return made


def _whole(mesh: DeviceMesh) -> DeviceMesh:
    """The mesh of a component in one process: the same dims, each of size 1."""
    nested: Any = 0
    for _ in mesh.dim_names:
        nested = [nested]
    return DeviceMesh.from_ranks(nested, mesh.dim_names, device_type=mesh.device_type)


class On:
    """A place for new components; see `on`."""

    def __init__(self, group: str, device_mesh: DeviceMesh | None) -> None:
        self._group = group
        self._mesh = device_mesh

    def create(self, cls: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Build a component, with typed arguments: `cls(*args, remote_group=group, device_mesh=mesh, **kwargs)`."""
        place: dict[str, Any] = {GROUP: self._group}
        if self._mesh is not None:
            place[MESH] = self._mesh
        return cast("T", cast("Any", cls)(*args, **kwargs, **place))


def on(group: str, device_mesh: DeviceMesh | None = None) -> On:
    """The typed form of `remote_group=` and `device_mesh=`: `on("actor", mesh).create(Actor, arg)`.

    Args:
        group: Name of a group of `initialize`.
        device_mesh: Mesh of the component, of the group's size.
    """
    running()
    return On(group, device_mesh)


def release(component: object) -> None:
    """Remove a component from all its workers after its earlier calls, and free its memory there.

    Later calls of the component are errors; its earlier results can still be fetched. The function does nothing for an
    object that was built in this process, or that is already released.

    Args:
        component: A component.

    Raises:
        TypeError: The argument is not a component.
        TwinkleError: As for any call.
    """
    call = _drop(component)
    if call is not None:
        call.wait()
        gc.collect()  # on threads, the freed objects may be in reference cycles


def release_all(components: Iterable[object]) -> Sequence[TwinkleError]:
    """Drop several components at once; see `release`. Returns the errors of those that could not be dropped."""
    errors: list[TwinkleError] = []
    calls: list[PendingCall] = []
    for component in components:
        try:
            calls += filter(None, [_drop(component)])
        except TwinkleError as error:
            errors.append(error)
    for call in calls:
        try:
            call.wait()
        except TwinkleError as error:
            errors.append(error)
    gc.collect()
    return errors


def _drop(component: object) -> PendingCall | None:
    """Begin to drop a component; None if there is nothing to do."""
    found = component_of(component)
    if not is_handle(component):
        if found is None and not is_component_type(type(component)):
            raise TypeError(f"release takes a component, got {type(component).__name__} {component!r:.60}")
        return None
    assert found is not None
    runtime = running()
    if runtime.has_released(found):
        return None
    call = start(Call("drop", found, None, f"{found.name}.release", _DROP, call_line()), held=True)
    runtime.released.add((found.group, found.instance))
    return call
