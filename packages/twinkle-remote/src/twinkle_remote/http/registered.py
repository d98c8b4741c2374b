"""The types that travel by name in this process, beside those in the annotations of served classes."""

from __future__ import annotations

import typing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

from twinkle_remote.http.wire.type_names import TypeNames
from twinkle_remote.protocol.marks import options_of

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T", bound=type)
TYPES = TypeNames()


def register_type(cls: T, name: str | None = None) -> T:
    """Let the values of a class travel over HTTP; call it on both sides. It can decorate the class.

    Args:
        cls: A dataclass, a named tuple or an enum.
        name: Its name on the wire, the same on both sides; by default its module and qualified name.

    Raises:
        TypeError: It is a class of another kind.
        ValueError: Another class has this name.
    """
    TYPES.add(cls, name)
    return cls


def register_annotated(cls: type) -> None:
    """Let all types travel that occur in the annotations of a remote class: its constructor and remote functions."""
    for name in dir(cls):
        found = vars_of(cls, name)
        function = found.fget if isinstance(found, property) else found
        if name == "__init__" or options_of(function) is not None:
            for annotation in _annotations(function):
                TYPES.add_annotated(annotation)


def vars_of(cls: type, name: str) -> Any:
    """The attribute of a class as it is stored."""
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)


def _annotations(function: Any) -> Iterator[Any]:
    """The annotations that can be read, each by itself: one may name what exists for type checkers only."""
    inner = getattr(function, "__wrapped__", function)
    for annotation in getattr(inner, "__annotations__", {}).values():
        one: Any = SimpleNamespace(__annotations__={"it": annotation})
        try:
            yield typing.get_type_hints(one, getattr(inner, "__globals__", {}))["it"]
        except Exception:  # the name exists for type checkers only
            continue
