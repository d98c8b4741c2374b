"""A component's begin and end: what calling a remote class does, and what `release` does.

`remote_class` puts `construct` in place of the class's `__new__`: it makes an object of this process, or a handle of
objects on the workers of a group. Python then calls `__init__` on the result: that of a handle does nothing, that of an
object is wrapped once. It takes the keywords of placement off, and seeds the generators before an object is built.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import itertools
import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar, cast
from weakref import WeakSet

from twinkle_remote.component.method import inherit_options, make_handle
from twinkle_remote.context import WorkerContext, call_line, current_worker, users_part, working_as
from twinkle_remote.errors import NotInitializedError, PlacementError, TwinkleError
from twinkle_remote.protocol.messages import Call, Component, component_of, is_component_type, is_handle, remember
from twinkle_remote.protocol.spec import FunctionSpec, execute_of
from twinkle_remote.sessions.seeding import constructor_seeded, next_component_seed
from twinkle_remote.sessions.session import absence, active, running

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinkle_mesh import DeviceMesh
    from twinkle_remote.sessions.session import Runtime


GROUP, MESH, INSTANCE = "remote_group", "device_mesh", "instance_id"
_KEYWORDS = frozenset({GROUP, MESH, INSTANCE})
ORIGINAL = "__twinkle_original__"
_prepared: WeakSet[type] = WeakSet()


def _prepare(cls: Any) -> None:
    """Prepare a remote class, or a subclass of one, before its first object; once."""
    if cls in _prepared:
        return
    inherit_options(cls)
    original = cls.__init__

    @functools.wraps(original)
    def init(self: Any, /, *args: Any, **kwargs: Any) -> None:
        if type(self).__init__ is init:  # not when called through super().__init__
            _initialize(original, self, args, kwargs)
        else:
            original(self, *args, **kwargs)

    cls.__init__ = init
    _prepared.add(cls)


def _initialize(original: Callable[..., None], itself: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Call a constructor with its own keywords only; a local component is constructed as on a worker."""
    cls, component, runtime = type(itself), component_of(itself), active()
    if component is None or runtime is None or not runtime.backend.in_process:
        original(itself, *args, **own_keywords(cls, kwargs))
        return
    backend = runtime.backend
    kwargs = own_keywords(cls, with_mesh(cls, args, kwargs, component.mesh))
    size, alone = backend.group(component.group).size, execute_of(cls) == "first"
    seed = None if component.group == backend.own_group else next_component_seed()
    place = WorkerContext(component.group, backend.rank, size, component.mesh, alone)
    with working_as(place), nullcontext() if seed is None else constructor_seeded(seed):
        original(itself, *args, **kwargs)


def own_keywords(cls: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keywords, without the placement keywords that the class does not declare."""
    if _KEYWORDS.isdisjoint(kwargs):
        return kwargs
    declared = declared_keywords(cls)
    return {key: value for key, value in kwargs.items() if key not in _KEYWORDS or key in declared}


def with_mesh(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: DeviceMesh | None) -> dict[str, Any]:
    """The keywords with the component's actual mesh, for a class that declares `device_mesh`."""
    if mesh is None or MESH not in declared_keywords(cls):
        return kwargs
    by_place = list(constructor_signature(cls).parameters)[: len(args)]
    return kwargs if MESH in by_place else {**kwargs, MESH: mesh}


def declared_keywords(cls: Any) -> frozenset[str]:
    """The placement keywords that the constructor declares, or that a base declares and receives as `**kwargs`."""
    names: set[str] = set()
    for base in cls.__mro__[:-1]:
        if inspect.isfunction(function := vars(base).get("__init__")):
            parameters = inspect.signature(function).parameters
            names.update(parameters)
            if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
                break
    return _KEYWORDS & names


def constructor_signature(cls: Any) -> inspect.Signature:
    """The signature of calling the class: that of its `__init__`."""
    if inspect.unwrap(cls.__init__) is object.__init__:
        return inspect.Signature()
    signature = inspect.signature(cls.__init__)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


class ConstructorSignature:
    """The descriptor that gives `inspect.signature` the constructor's own signature, also for subclasses."""

    def __get__(self, instance: object, cls: Any) -> inspect.Signature:
        if instance is not None:
            raise AttributeError("__signature__")
        return constructor_signature(cls)


def intercept(cls: Any) -> None:
    """Let `construct` make the objects of a class, and of its subclasses without a `__new__` of their own."""
    original = cls.__new__
    if hasattr(original, ORIGINAL):  # that of a remote base
        return

    def new(kind: Any, /, *args: Any, **kwargs: Any) -> Any:
        if kind.__new__ is not new:  # called by the `__new__` of a subclass
            if not hasattr(kind.__new__, ORIGINAL):
                raise TypeError(f"{kind.__name__} has a __new__ of its own: decorate it with @remote_class() as well")
            return _new(kind, original, args, kwargs)
        try:
            return construct(kind, original, args, kwargs)
        except TwinkleError as error:
            raise error.with_traceback(users_part(error.__traceback__)) from error.__cause__

    setattr(new, ORIGINAL, original)
    cls.__new__ = staticmethod(new)


def construct(cls: Any, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of calling a remote class: the new object, or the handle of an object on a group.

    Raises:
        NotInitializedError: A group is named before `initialize`.
        PlacementError: The group does not exist, or the mesh does not fit it.
        TypeError: The constructor does not take the arguments.
    """
    _prepare(cls)
    name = kwargs.get(GROUP)
    runtime = active()
    in_process = runtime is not None and runtime.backend.in_process
    if not in_process and (name is None or name == current_worker().group):
        return _new(cls, original, args, kwargs)
    if runtime is None:
        raise NotInitializedError(
            f"{cls.__name__}(remote_group={name!r}): {absence()}, or leave remote_group out to build it here"
        )
    if in_process:
        return adopt(cls, runtime, name, kwargs, _new(cls, original, args, kwargs))
    assert name is not None
    return create(cls, name, args, kwargs, runtime)


def _new(cls: Any, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An object of this process, before its `__init__`."""
    return original(cls) if original is object.__new__ else original(cls, *args, **own_keywords(cls, kwargs))


P = ParamSpec("P")
T = TypeVar("T")

_DROP = FunctionSpec(dispatch="all")
_count = itertools.count()


def create(cls: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], runtime: Runtime) -> Any:
    """Build a component on a group, and make a handle of it."""
    from twinkle_remote.call.send import start  # a worker builds its own objects only

    runtime.in_flight.raise_not_retrieved()
    group = runtime.backend.group(name)
    ranks = (0,) if execute_of(cls) == "first" else tuple(range(group.size))
    mesh = None if group.undivided else _fitting(cls, kwargs.get(MESH), name, group.size)
    component = Component(name, _instance(cls, kwargs, name, runtime), cls.__name__, ranks, mesh)
    passed = with_mesh(cls, args, kwargs, mesh)
    signature = constructor_signature(cls)
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
    """
    from twinkle_mesh import DeviceMesh  # few workers have a mesh

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
    return type(mesh).from_ranks(nested, mesh.dim_names, device_type=mesh.device_type)


class On(NamedTuple):
    """A place for new components; see `on`."""

    group: str
    device_mesh: DeviceMesh | None

    def create(self, cls: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Build a component, with typed arguments: `cls(*args, remote_group=group, device_mesh=mesh, **kwargs)`."""
        place: dict[str, Any] = {GROUP: self.group}
        if self.device_mesh is not None:
            place[MESH] = self.device_mesh
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

    Raises:
        TypeError: The argument is not a component.
        TwinkleError: As for any call.
    """
    from twinkle_remote.call.send import start  # as in `create`

    found = component_of(component)
    if not is_handle(component):
        if found is None and not is_component_type(type(component)):
            raise TypeError(f"release takes a component, got {type(component).__name__} {component!r:.60}")
        return
    assert found is not None
    runtime = running()
    if found.key not in runtime.released:
        call = start(Call("drop", found, None, f"{found.name}.release", _DROP, call_line()), held=True)
        runtime.released.add(found.key)
        call.wait()
        gc.collect()  # on threads, the freed objects may be in reference cycles
