"""The types that travel by name in this process, beside those in the annotations of served classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from twinkle_remote.http.annotations import annotations_of
from twinkle_remote.http.wire.type_names import TypeNames, name_of
from twinkle_remote.protocol.component import is_component_type
from twinkle_remote.protocol.marks import options_of

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T", bound=type)
TYPES = TypeNames()
_COMPONENTS: dict[str, type] = {}


def register_type(
    cls: T,
    name: str | None = None,
    *,
    to_plain: Callable[[Any], Any] | None = None,
    from_plain: Callable[[Any], Any] | None = None,
) -> T:
    """Let the values of a class travel over HTTP; call it on both sides. It can decorate the class.

    Args:
        cls: A dataclass, a named tuple or an enum; or a remote class that stands for the server's class of this name;
            or, with `to_plain` and `from_plain`, any class.
        name: Its name on the wire, the same on both sides; by default its module and qualified name.
        to_plain: What travels for a value, such as a list of its parts.
        from_plain: Makes a value of what has travelled. A client may send anything: it raises ValueError or TypeError
            for what `to_plain` does not give.

    Raises:
        TypeError: It is a class of another kind.
        ValueError: Another class has this name.
    """
    if is_component_type(cls):
        name = name or name_of(cls)
        if _COMPONENTS.setdefault(name, cls) is not cls:
            raise ValueError(f"the name {name!r} belongs to {_COMPONENTS[name]!r}: give {cls!r} another name")
    else:
        TYPES.add(cls, name, None if to_plain is None or from_plain is None else (to_plain, from_plain))
    return cls


def component_name(cls: type) -> str:
    """The server's name of a remote class."""
    return next((name for name, known in tuple(_COMPONENTS.items()) if known is cls), None) or name_of(cls)


def registered_component(name: str) -> type | None:
    """The remote class that was registered by a name."""
    return _COMPONENTS.get(name)


def register_annotated(cls: type) -> None:
    """Let all types travel that occur in the annotations of a remote class: its constructor and remote functions.

    What its module imports for type checkers only is imported where these annotations name it.
    """
    for name in dir(cls):
        found = vars_of(cls, name)
        function = found.fget if isinstance(found, property) else found
        if name == "__init__" or options_of(function) is not None:
            for annotation in annotations_of(function, load=True).values():
                TYPES.add_annotated(annotation)


def vars_of(cls: type, name: str) -> Any:
    """The attribute of a class as it is stored."""
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
