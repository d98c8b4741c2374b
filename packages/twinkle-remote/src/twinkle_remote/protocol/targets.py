"""The attribute of a class that a remote function is: a worker runs that one, whatever the function calls itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_remote.protocol.component import HandleBase

if TYPE_CHECKING:
    from collections.abc import Iterator

_OF = "@"


def bases_of(kind: type) -> Iterator[type]:
    """The classes in which Python looks an attribute up, the nearest first; those of handles are left out."""
    for base in kind.__mro__:
        if not issubclass(base, HandleBase):
            yield base


def target_of(kind: type, function: Any) -> str:
    """The name under which objects of a class find a remote function.

    Args:
        kind: A remote class, or the class of its handles.
        function: The remote function, or the one that reads a property.

    Returns:
        The name of the attribute; `name@class` for the attribute of a base that a subclass overrides.

    Raises:
        TypeError: No attribute of the class or of its bases is this function.
    """
    name = function.__name__
    if _reader(_first(kind, name)) is function:
        return str(name)
    hidden = ""
    for base in bases_of(kind):
        for name, value in vars(base).items():
            if _reader(value) is not function:
                continue
            if _first(kind, name) is value:
                return name
            hidden = hidden or f"{name}{_OF}{_path(base)}"
    if not hidden:
        raise TypeError(
            f"{function.__qualname__} is no attribute of {next(bases_of(kind)).__name__}, so its workers cannot be "
            "asked for it: a decorator above @remote_function() hides it (put it below), or it is of another class"
        )
    return hidden


def bound_target(bound: Any) -> str:
    """`target_of` of a bound remote function."""
    return target_of(type(bound.__self__), bound.__func__)


def attribute_at(kind: type, target: str) -> Any:
    """The attribute of a class that `target_of` named; None if it has none."""
    name, _, path = target.partition(_OF)
    if not path:
        return _first(kind, name)
    return next((vars(base)[name] for base in kind.__mro__ if _path(base) == path and name in vars(base)), None)


def call_target(instance: Any, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the attribute of an object that `target_of` named, or read it if it is a property."""
    name, _, path = target.partition(_OF)
    kind = type(instance)
    if not path:
        found = getattr(instance, name)
        return found if isinstance(getattr(kind, name, None), property) else found(*args, **kwargs)
    hidden = _reader(attribute_at(kind, target))
    if hidden is None:
        raise AttributeError(f"{kind.__name__} has no base {path} with {name}")
    return hidden(instance, *args, **kwargs)


def _reader(value: Any) -> Any:
    return value.fget if isinstance(value, property) else value


def _first(kind: type, name: str) -> Any:
    for base in bases_of(kind):
        if name in vars(base):
            return vars(base)[name]
    return None


def _path(base: type) -> str:
    return f"{base.__module__}.{base.__qualname__}"
