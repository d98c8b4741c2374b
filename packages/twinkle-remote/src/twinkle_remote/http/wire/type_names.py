"""The classes that travel by name: dataclasses, named tuples and enums that both sides know."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import threading
import types
import typing
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T", bound=type)


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
        self._lock = threading.Lock()

    def add(self, kind: type, name: str | None = None) -> None:
        """Let the values of a class travel.

        Args:
            kind: A dataclass, a named tuple or an enum.
            name: Its name on the wire; by default module and qualified name.

        Raises:
            TypeError: It is a class of another kind.
            ValueError: Another class has this name.
        """
        if not (inspect.isclass(kind) and travels_by_name(kind)):
            raise TypeError(f"{kind!r} is not a dataclass, a named tuple or an enum: only these travel by name")
        name = name or name_of(kind)
        with self._lock:
            known = self._types.setdefault(name, kind)
        if known is not kind:
            raise ValueError(f"the name {name!r} belongs to {known!r}: give {kind!r} another name")

    def add_annotated(self, annotation: Any) -> None:
        """Let all classes travel that occur in an annotation, and in the annotations of their fields."""
        for kind in _classes_in(annotation, set()):
            if self.find(name_of(kind)) is None:
                self.add(kind)

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
        for inner in _annotations(annotation).values():
            yield from _classes_in(inner, seen)
        return
    for inner in typing.get_args(annotation):
        yield from _classes_in(inner, seen)


def _annotations(kind: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind)
    except Exception:  # an annotation may name what exists for type checkers only
        return {}
