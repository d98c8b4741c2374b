"""The call of a remote class: it makes an object here, or a handle of objects on the workers of a group.

`remote_class` puts `construct` in place of the class's `__new__`. Python then calls `__init__` on the result: that of a
handle does nothing, that of an object is wrapped (`constructor`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_remote.component.constructor import GROUP, ORIGINAL, own_keywords, prepare
from twinkle_remote.context import current_worker
from twinkle_remote.errors import NotInitializedError, TwinkleError
from twinkle_remote.failures.frames import users_part
from twinkle_remote.sessions.current import absence, active

if TYPE_CHECKING:
    from collections.abc import Callable


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
    prepare(cls)
    name = kwargs.get(GROUP)
    runtime = active()
    in_process = runtime is not None and runtime.backend.in_process
    if not in_process and (name is None or name == current_worker().group):
        return _new(cls, original, args, kwargs)
    if runtime is None:
        raise NotInitializedError(
            f"{cls.__name__}(remote_group={name!r}): {absence()}, or leave remote_group out to build it here"
        )
    from twinkle_remote.component.create import adopt, create  # a worker builds its own objects only

    if in_process:
        return adopt(cls, runtime, name, kwargs, _new(cls, original, args, kwargs))
    assert name is not None
    return create(cls, name, args, kwargs, runtime)


def _new(cls: Any, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An object of this process, before its `__init__`."""
    return original(cls) if original is object.__new__ else original(cls, *args, **own_keywords(cls, kwargs))
