"""The call of a remote class: an object is made here, or on the workers of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from twinkle_remote.component.constructor import GROUP, MESH, build, is_building, prepare
from twinkle_remote.context import current_worker
from twinkle_remote.errors import NotInitializedError, TwinkleError
from twinkle_remote.sessions.current import absence, active

if TYPE_CHECKING:
    from collections.abc import Callable

_ORIGINAL = "__twinkle_original__"


def intercept(cls: Any) -> None:
    """Let `construct` make the objects of a class, and of its subclasses that define `__new__` themselves."""
    original = cls.__new__
    if not hasattr(original, _ORIGINAL):

        def new(kind: Any, /, *args: Any, **kwargs: Any) -> Any:
            try:
                return construct(kind, original, args, kwargs)
            except TwinkleError as error:
                from twinkle_remote.failures.frames import users_part  # a worker without errors does without

                raise error.with_traceback(users_part(error.__traceback__)) from error.__cause__

        setattr(new, _ORIGINAL, original)
        cls.__new__ = staticmethod(new)
    if "__init_subclass__" in vars(cls) or not hasattr(cls.__init_subclass__, _ORIGINAL):
        _follow_subclasses(cls)


def _follow_subclasses(cls: Any) -> None:
    own = vars(cls).get("__init_subclass__")

    def follow(subclass: Any, /, **kwargs: Any) -> None:
        if own is None:
            super(cls, subclass).__init_subclass__(**kwargs)
        else:
            own.__func__(subclass, **kwargs)
        if "__new__" in vars(subclass):
            intercept(subclass)

    setattr(follow, _ORIGINAL, own)
    cls.__init_subclass__ = classmethod(cast("Any", follow))


def construct(cls: Any, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of calling a remote class: the new object, or the handle of an object on a group.

    Args:
        cls: The class that was called.
        original: The class's own `__new__`; Python calls `__init__` on its result afterwards.
        args: Positional arguments of the constructor.
        kwargs: Keyword arguments, including those of placement.

    Raises:
        NotInitializedError: A group is named before `initialize`.
        PlacementError: The group does not exist, or the mesh does not fit it.
        TypeError: The constructor does not take the arguments.
    """
    if is_building(cls):  # called again, through super().__new__
        return build(cls, original, args, kwargs)
    prepare(cls)
    name = kwargs.get(GROUP)
    if name is not None:
        _check_place(cls, name, kwargs.get(MESH))
    runtime = active()
    in_process = runtime is not None and runtime.backend.in_process
    if not in_process and (name is None or name == current_worker().group):
        return build(cls, original, args, kwargs)
    if runtime is None:
        raise NotInitializedError(
            f"{cls.__name__}(remote_group={name!r}): {absence()}, or leave remote_group out to build it here"
        )
    from twinkle_remote.component.create import adopt, handle_on_group  # a worker builds its own objects only

    if in_process:
        return adopt(cls, runtime, name, args, kwargs, build(cls, original, args, kwargs))
    assert name is not None
    return handle_on_group(cls, name, args, kwargs, runtime)


def _check_place(cls: type, name: object, mesh: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"{cls.__name__}: {GROUP} is the name of a group, got {type(name).__name__} {name!r:.60}")
    if mesh is None:
        return
    from twinkle_mesh import DeviceMesh  # a worker without a mesh does not load it

    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"{cls.__name__}: {MESH} is a DeviceMesh, got {type(mesh).__name__} {mesh!r:.60}")
