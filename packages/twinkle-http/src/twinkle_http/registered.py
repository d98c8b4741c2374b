"""Types by name: types in the annotations of a served class can be sent; other names are looked up, never imported."""

from __future__ import annotations

import sys
import types
import typing
from typing import TYPE_CHECKING, Any

from twinkle_http.annotations import annotations_of, fields_of
from twinkle_http.tags import own_error_type
from twinkle_remote.protocol import is_component_type, options_of
from twinkle_remote.values import TYPES, name_of, registered_component, travels_by_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twinkle_remote.values import TypeNames


def register_annotated(cls: type) -> None:
    """Allow all types in the annotations of a remote class to be sent: those of its constructor and remote functions.

    What its module imports for type checkers only is imported where these annotations name it.
    """
    for name in dir(cls):
        found = vars_of(cls, name)
        function = found.fget if isinstance(found, property) else found
        if name == "__init__" or options_of(function) is not None:
            for annotation in annotations_of(function, load=True).values():
                add_annotated(TYPES, annotation)


def add_annotated(known: TypeNames, annotation: Any) -> None:
    """Allow all classes in an annotation, and in the annotations of their fields, to be sent."""
    for kind in _classes_in(annotation, set()):
        if known.name(kind) is None and known.find(name_of(kind)) is None:
            known.add(kind)


def vars_of(cls: type, name: str) -> Any:
    """The attribute of a class as it is stored."""
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)


def _classes_in(annotation: Any, seen: set[Any]) -> Iterator[type]:
    """Yield the classes that travel by name in an annotation, and in the annotations of their fields."""
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


def loaded_error_type(name: str) -> type | None:
    """A class of exceptions; None if it is not loaded."""
    found = own_error_type(name) or _loaded(name)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def loaded_component_type(name: str) -> type | None:
    """A remote class; None if it is not loaded."""
    found = registered_component(name) or _loaded(name)
    return found if isinstance(found, type) and is_component_type(found) else None


def _loaded(name: str) -> Any:
    parts = name.split(".")
    for at in range(len(parts) - 1, -1, -1):
        module = sys.modules.get(".".join(parts[:at]) or "__main__")
        if module is not None:
            found: Any = module
            for part in parts[at:]:
                found = vars(found).get(part) if hasattr(found, "__dict__") else None
            return found
    return None
