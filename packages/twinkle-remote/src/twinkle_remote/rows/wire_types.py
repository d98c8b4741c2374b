"""The classes whose values and instances a wire without pickle names: both sides know them by these names."""

from __future__ import annotations

import dataclasses
import enum
import inspect
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from twinkle_remote.protocol.messages import is_component_type

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T", bound=type)
Plain: TypeAlias = "tuple[Callable[[Any], Any], Callable[[Any], Any]]"


def is_named_tuple(kind: type) -> bool:
    """Whether a class is a named tuple."""
    return issubclass(kind, tuple) and isinstance(getattr(kind, "_fields", None), tuple)


def travels_by_name(kind: type) -> bool:
    """Whether a class is a dataclass, a named tuple or an enum."""
    return dataclasses.is_dataclass(kind) or is_named_tuple(kind) or issubclass(kind, enum.Enum)


def name_of(kind: type) -> str:
    """The name by which both sides know a class; its module is left out of classes of a program's `__main__`."""
    return kind.__qualname__ if kind.__module__ == "__main__" else f"{kind.__module__}.{kind.__qualname__}"


class TypeNames:
    """The known classes, by name.

    A name is never imported: a message can only name classes that are already known here.
    """

    def __init__(self) -> None:
        self._types: dict[str, type] = {}
        self._plain: dict[type, Plain] = {}

    def add(self, kind: type, name: str | None = None, plain: Plain | None = None) -> None:
        """Allow values of a class to be sent.

        Args:
            kind: A dataclass, a named tuple or an enum; any class with `plain`.
            name: Its name on the wire; by default module and qualified name.
            plain: Gives what travels for a value, and makes a value of it.

        Raises:
            TypeError: It is a class of another kind.
            ValueError: Another class has this name.
        """
        if not inspect.isclass(kind) or (plain is None and not travels_by_name(kind)):
            raise TypeError(f"{kind!r} is not a dataclass, a named tuple or an enum: only these can be sent by name")
        name = name or name_of(kind)
        known = self._types.setdefault(name, kind)
        if plain is not None and known is kind:
            self._plain[kind] = plain
        if known is not kind:
            raise ValueError(f"the name {name!r} belongs to {known!r}: give {kind!r} another name")

    def plain(self, kind: type) -> Plain | None:
        """The pair of functions that give and take the plain form of a class's values; None without one."""
        return self._plain.get(kind)

    def find(self, name: str) -> type | None:
        """The class of a name; None if it is not known."""
        return self._types.get(name)

    def name(self, kind: type) -> str | None:
        """The name of a known class; None if it is not known."""
        name = name_of(kind)
        if self._types.get(name) is kind:
            return name
        return next((other for other, known in tuple(self._types.items()) if known is kind), None)


TYPES = TypeNames()
_COMPONENTS: dict[str, type] = {}


def register_type(
    cls: T,
    name: str | None = None,
    *,
    to_plain: Callable[[Any], Any] | None = None,
    from_plain: Callable[[Any], Any] | None = None,
) -> T:
    """Allow values of a class to be sent over HTTP. Call it on both sides; it can decorate the class.

    Args:
        cls: A dataclass, a named tuple or an enum; or a remote class that stands for the server's class of this name;
            or, with `to_plain` and `from_plain`, any class.
        name: Its name on the wire, the same on both sides; by default its module and qualified name.
        to_plain: Returns the form in which a value is sent, such as a list of its parts.
        from_plain: Makes a value from the sent form. A client may send anything, so it must raise ValueError or
            TypeError for a form that `to_plain` does not return.

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
