"""Where a component is built: in this process, or on the workers of a group."""

from __future__ import annotations

import inspect
import itertools
import os
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from twinkle_mesh import DeviceMesh
from twinkle_remote.call import start
from twinkle_remote.component import COMPONENT, Component
from twinkle_remote.context import current_worker
from twinkle_remote.errors import NotInitializedError, PlacementError
from twinkle_remote.handle import make_handle
from twinkle_remote.protocol import InProcessBackend
from twinkle_remote.runtime import active, running
from twinkle_remote.spec import FunctionSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinkle_remote.runtime import Runtime
    from twinkle_remote.spec import Execute

P = ParamSpec("P")
T = TypeVar("T")

GROUP, MESH, INSTANCE = "remote_group", "device_mesh", "instance_id"
_count = itertools.count()


def strip_placement(cls: Any, kwargs: dict[str, Any], declared: frozenset[str] | None = None) -> dict[str, Any]:
    """Constructor keywords without those of placement that the constructor does not declare itself."""
    if declared is None:
        declared = frozenset(inspect.signature(cls.__init__).parameters)
    return {key: value for key, value in kwargs.items() if key not in (GROUP, MESH, INSTANCE) or key in declared}


def with_mesh(kwargs: dict[str, Any], mesh: DeviceMesh | None, declared: frozenset[str]) -> dict[str, Any]:
    """Constructor keywords with the mesh that the component really has, where the constructor declares one."""
    return {**kwargs, MESH: mesh} if mesh is not None and MESH in declared else kwargs


def construct(
    cls: type[T], execute: Execute, args: tuple[Any, ...], kwargs: dict[str, Any], build: Callable[[], T]
) -> T:
    """What calling a remote class returns: the new object, or the handle of one that was built on a group.

    Args:
        cls: The class that was called.
        execute: "first" or "all".
        args: Positional arguments of the constructor.
        kwargs: Keyword arguments, those of placement among them.
        build: Makes the bare object in this process; Python calls `__init__` on it afterwards.

    Raises:
        NotInitializedError: A group is named before `initialize`.
        PlacementError: There is no such group, or the mesh does not fit it.
    """
    name = kwargs.get(GROUP)
    runtime = active()
    if runtime is not None and current_worker().rank is None and isinstance(runtime.backend, InProcessBackend):
        return _adopt(cls, runtime, name, kwargs, build)
    if name is None or name == current_worker().group:
        return build()
    if runtime is None:
        raise NotInitializedError(
            f"{cls.__name__}(remote_group={name!r}): twinkle is not initialized; call "
            "twinkle.initialize(mode, groups=[DeviceGroup(...)]) first, or leave remote_group out to build it here"
        )
    return cast("T", make_handle(cls, _build_on_group(cls, execute, name, args, kwargs, runtime)))


def _build_on_group(
    cls: type[Any],
    execute: Execute,
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    runtime: Runtime,
) -> Component:
    group = runtime.backend.group(name)
    ranks = (0,) if execute == "first" else tuple(range(group.size))
    mesh = _mesh_for(cls, kwargs.get(MESH), runtime, name, group.size, execute)
    instance = kwargs.get(INSTANCE) or f"{cls.__name__}-{os.getpid():x}-{next(_count)}"
    component = Component(name, str(instance), cls.__name__, ranks, mesh)
    signature = inspect.signature(cls.__init__)
    declared = frozenset(signature.parameters)
    passed = with_mesh(kwargs, mesh, declared)
    try:
        signature.bind(None, *args, **strip_placement(cls, passed, declared))
    except TypeError as error:
        raise TypeError(f"{cls.__name__}{signature}: {error}") from None
    timeout = getattr(runtime.backend, "start_timeout", None)
    spec = FunctionSpec(dispatch="all", sync=True, timeout=timeout)
    names = [f"args[{i}]" for i in range(len(args))]
    start(component, "create", cls, f"{cls.__name__}.__init__", spec, names, args, passed).wait()
    return component


def _mesh_for(
    cls: type[Any], mesh: DeviceMesh | None, runtime: Runtime, group: str, size: int, execute: Execute
) -> DeviceMesh | None:
    if mesh is None:
        shared = runtime.mesh
        return shared if shared is not None and shared.world_size == size else None
    if execute == "all" and (mesh.world_size != size or set(mesh.ranks) != set(range(size))):
        raise PlacementError(
            f"{cls.__name__}: device_mesh has {mesh.world_size} ranks and group {group!r} has {size} workers, ranks 0 "
            f"to {size - 1}; they must be the same: give the group ranks={mesh.world_size}, or the mesh "
            f"world_size={size}"
        )
    return mesh


def _adopt(cls: type[T], runtime: Runtime, name: str | None, kwargs: dict[str, Any], build: Callable[[], T]) -> T:
    """Build in this process, in local mode: the object's calls still go through dispatch and collect."""
    if name is not None and runtime.groups and name not in runtime.groups:
        raise PlacementError(f"there is no group {name!r}; initialize was given {', '.join(map(repr, runtime.groups))}")
    group = runtime.backend.group(name or "local")
    mesh = kwargs.get(MESH)
    if mesh is None and runtime.mesh is not None and runtime.mesh.world_size == group.size:
        mesh = runtime.mesh
    if mesh is not None and group.size == 1:
        mesh = _whole(mesh)
    elif mesh is not None:
        _mesh_for(cls, mesh, runtime, group.name, group.size, "all")
    made = build()
    instance = str(kwargs.get(INSTANCE) or f"{cls.__name__}-{next(_count)}")
    ranks = tuple(range(group.size)) if mesh is not None or name is not None else (0,)
    component = Component(group.name, instance, cls.__name__, ranks, mesh)
    if cast("InProcessBackend", runtime.backend).adopt(group.name, instance, made, mesh):
        object.__setattr__(made, COMPONENT, component)
    return made


def _whole(mesh: DeviceMesh) -> DeviceMesh:
    """The mesh of one process that is the whole component: the same dims, each of size 1."""
    nested: Any = 0
    for _ in mesh.dim_names:
        nested = [nested]
    return DeviceMesh.from_ranks(nested, mesh.dim_names, device_type=mesh.device_type)


class On:
    """A place to build components; see `on`."""

    def __init__(self, group: str, device_mesh: DeviceMesh | None) -> None:
        self._group = group
        self._mesh = device_mesh

    def create(self, cls: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Build a component: `cls(*args, remote_group=group, device_mesh=mesh, **kwargs)`, its arguments typed."""
        place: dict[str, Any] = {GROUP: self._group}
        if self._mesh is not None:
            place[MESH] = self._mesh
        return cast("T", cast("Any", cls)(*args, **kwargs, **place))


def on(group: str, device_mesh: DeviceMesh | None = None) -> On:
    """The typed spelling of `remote_group=` and `device_mesh=`: `on("actor", mesh).create(Actor, arg)`.

    Args:
        group: Name of a group that `initialize` was given.
        device_mesh: Mesh of the component, as large as the group.
    """
    running()
    return On(group, device_mesh)
