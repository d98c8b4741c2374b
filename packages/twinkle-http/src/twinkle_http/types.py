"""The classes that may be sent: those in the annotations of served methods, and those given to `register_type`.

A name in a message is looked up among the classes that are loaded; nothing is imported for it.
"""

from __future__ import annotations

import builtins
import collections.abc
import inspect
import sys
import types
import typing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from twinkle_mesh import DeviceMesh
from twinkle_remote.protocol import Itself, is_component_type, options_of
from twinkle_remote.rows import TYPES, name_of, registered_component, travels_by_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from twinkle_remote.rows import TypeNames

TYPES.add(DeviceMesh, plain=(DeviceMesh.to_dict, DeviceMesh.from_dict))
TYPES.add(Itself)
_COMMON = {**vars(typing), **vars(collections.abc)}  # often imported for type checkers only


def annotations_of(function: Any) -> dict[str, Any]:
    """The annotations of a function by parameter and "return".

    One that names what exists for type checkers only is Any: values of such a class are sent after `register_type`.
    """
    inner = inspect.unwrap(function)
    return _evaluated(getattr(inner, "__annotations__", {}), getattr(inner, "__globals__", {}))


def _evaluated(annotations: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name, annotation in annotations.items():
        one: Any = SimpleNamespace(__annotations__={name: annotation})
        try:
            found[name] = typing.get_type_hints(one, {**_COMMON, **known})[name]
        except Exception:  # any expression may stand in an annotation
            found[name] = Any
    return found


def constructor_parameters(cls: Any) -> Mapping[str, inspect.Parameter]:
    """The parameters of calling a class by name; none of one whose constructor is written in C."""
    try:
        return inspect.signature(cls).parameters
    except ValueError:
        return {}


def register_annotated(cls: type) -> None:
    """Allow the types in the annotations of a remote class to be sent: of its constructor and its remote functions."""
    for name in dir(cls):
        found = inspect.getattr_static(cls, name, None)
        function = found.fget if isinstance(found, property) else found
        if name == "__init__" or options_of(function) is not None:
            for annotation in annotations_of(function).values():
                add_annotated(TYPES, annotation)


def add_annotated(known: TypeNames, annotation: Any) -> None:
    """Allow all classes in an annotation, and in the annotations of their fields, to be sent."""
    for kind in _classes_in(annotation, set()):
        if known.name(kind) is None and known.find(name_of(kind)) is None:
            known.add(kind)


def _classes_in(annotation: Any, seen: set[Any]) -> Iterator[type]:
    """Yield the classes that travel by name in an annotation, and in the annotations of their fields."""
    if not isinstance(annotation, type) or isinstance(annotation, types.GenericAlias):
        for inner in typing.get_args(annotation):
            yield from _classes_in(inner, seen)
        return
    if annotation in seen or not travels_by_name(annotation):
        return
    seen.add(annotation)
    yield annotation
    for base in annotation.__mro__[:-1]:
        fields = _evaluated(inspect.get_annotations(base), vars(sys.modules.get(base.__module__, builtins)))
        for inner in fields.values():
            yield from _classes_in(inner, seen)


def loaded_error_type(name: str) -> type | None:
    """A class of exceptions; None if it is not loaded."""
    found = getattr(builtins, name.removeprefix("builtins."), None) or _loaded(name)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def loaded_component_type(name: str) -> type | None:
    """A remote class; None if it is not loaded."""
    found = registered_component(name) or _loaded(name)
    return found if isinstance(found, type) and is_component_type(found) else None


def _loaded(name: str) -> Any:
    parts = name.split(".")
    for at in range(len(parts) - 1, -1, -1):
        found: Any = sys.modules.get(".".join(parts[:at]) or "__main__")
        if found is not None:
            for part in parts[at:]:
                found = vars(found).get(part) if hasattr(found, "__dict__") else None
            return found
    return None
