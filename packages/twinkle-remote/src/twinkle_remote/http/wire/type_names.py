"""The classes that travel by name: dataclasses, named tuples and enums that both sides know."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import threading
import types
import typing
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from twinkle_remote.http.annotations import fields_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
        self._lock = threading.Lock()

    def add(self, kind: type, name: str | None = None, plain: Plain | None = None) -> None:
        """Let the values of a class travel.

        Args:
            kind: A dataclass, a named tuple or an enum; any class with `plain`.
            name: Its name on the wire; by default module and qualified name.
            plain: Gives what travels for a value, and makes a value of it.

        Raises:
            TypeError: It is a class of another kind.
            ValueError: Another class has this name.
        """
        if not inspect.isclass(kind) or (plain is None and not travels_by_name(kind)):
            raise TypeError(f"{kind!r} is not a dataclass, a named tuple or an enum: only these travel by name")
        name = name or name_of(kind)
        with self._lock:
            known = self._types.setdefault(name, kind)
            if plain is not None and known is kind:
                self._plain[kind] = plain
        if known is not kind:
            raise ValueError(f"the name {name!r} belongs to {known!r}: give {kind!r} another name")

    def add_annotated(self, annotation: Any) -> None:
        """Let all classes travel that occur in an annotation, and in the annotations of their fields."""
        for kind in _classes_in(annotation, set()):
            if self.name(kind) is None and self.find(name_of(kind)) is None:
                self.add(kind)

    def known(self) -> dict[str, type]:
        """All known classes by name."""
        with self._lock:
            return dict(self._types)

    def plain(self, kind: type) -> Plain | None:
        """What gives and takes the plain form of a class's values; None without one."""
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


def _classes_in(annotation: Any, seen: set[Any]) -> Iterator[type]:
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        if annotation in seen or not travels_by_name(annotation):
            return
        seen.add(annotation)
        yield annotation
        for inner in fields_of(annotation, load=True).values():
            yield from _classes_in(inner, seen)
        return
    for inner in typing.get_args(annotation):
        yield from _classes_in(inner, seen)
