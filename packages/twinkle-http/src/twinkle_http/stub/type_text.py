"""An annotation as text that a client without the server's modules can use; other types become Any, with a note."""

from __future__ import annotations

import collections.abc
import datetime
import decimal
import fractions
import sys
import types
import typing
import uuid
from typing import TYPE_CHECKING, Any, Literal

from twinkle_http.annotations import Unknown
from twinkle_http.stub.safe_types import ABCS, BUILTINS, DTYPES, STANDARD
from twinkle_mesh import DeviceMesh

if TYPE_CHECKING:
    from collections.abc import Mapping

_OWN: dict[type, str] = {
    DeviceMesh: "DeviceMesh",
    datetime.date: "datetime.date",
    datetime.time: "datetime.time",
    datetime.datetime: "datetime.datetime",
    datetime.timedelta: "datetime.timedelta",
    decimal.Decimal: "decimal.Decimal",
    fractions.Fraction: "fractions.Fraction",
    uuid.UUID: "uuid.UUID",
}
assert set(_OWN.values()) == STANDARD
_ABCS = {getattr(collections.abc, name): name for name in ABCS}


class TypeText:
    """Writes annotations.

    Args:
        titles: The classes that the stub defines, and their names there.
    """

    def __init__(self, titles: Mapping[type, str]) -> None:
        self._titles = titles

    def title(self, kind: type) -> str:
        """The name of a class in the stub; empty for others."""
        return self._titles.get(kind, "")

    def text(self, annotation: Any) -> tuple[str, str]:
        """The text, and what in it became Any; empty if nothing did."""
        notes: list[str] = []
        return self._text(annotation, notes), ", ".join(dict.fromkeys(notes))

    def _text(self, annotation: Any, notes: list[str]) -> str:
        if annotation is None or annotation is type(None):
            return "None"
        if annotation is Any:
            return "Any"
        origin = typing.get_origin(annotation)
        if origin is not None:
            return self._generic(annotation, origin, notes)
        if isinstance(annotation, type):
            return self._class(annotation, notes)
        notes.append(str(annotation))
        return "Any"

    def _class(self, kind: type, notes: list[str]) -> str:
        if kind in self._titles:
            return self._titles[kind]
        if kind.__module__ == "builtins" and kind.__name__ in BUILTINS:
            return kind.__name__
        if kind in _OWN:
            return _OWN[kind]
        if kind in _ABCS:
            return _ABCS[kind]
        found = _of_library(kind)
        if found:
            return found
        notes.append(kind.__name__ if issubclass(kind, Unknown) else f"{kind.__module__}.{kind.__qualname__}")
        return "Any"

    def _generic(self, annotation: Any, origin: Any, notes: list[str]) -> str:
        given = typing.get_args(annotation)
        if origin in (typing.Union, types.UnionType):
            parts = list(dict.fromkeys(self._text(one, notes) for one in given))
            return "Any" if "Any" in parts else " | ".join(parts)
        if origin is Literal and all(type(one) in (str, int, bool, bytes, type(None)) for one in given):
            return f"Literal[{', '.join(map(repr, given))}]"
        if origin is typing.Annotated:
            return self._text(given[0], notes)
        head = self._class(origin, notes) if isinstance(origin, type) else "Any"
        if head == "Any" or not given:
            return head
        if origin is tuple and given[-1] is Ellipsis:
            return f"tuple[{self._text(given[0], notes)}, ...]"
        if origin is collections.abc.Callable:
            return "Any"
        if head.startswith(("numpy.ndarray", "numpy.dtype")):
            return _numpy(annotation, head)
        return f"{head}[{', '.join(self._text(one, notes) for one in given)}]"


def _of_library(kind: type) -> str:
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and kind is numpy.ndarray:
        return "numpy.ndarray[Any, Any]"
    if numpy is not None and kind.__module__ == "numpy" and kind.__name__ in DTYPES:
        return f"numpy.{kind.__name__}"
    if torch is not None and kind in (torch.Tensor, torch.dtype):
        return f"torch.{kind.__name__}"
    return ""


def _numpy(annotation: Any, head: str) -> str:
    """The text of an array with a type of its numbers."""
    for one in typing.get_args(annotation):
        for scalar in typing.get_args(one):
            if isinstance(scalar, type) and _of_library(scalar).startswith("numpy."):
                return f"numpy.ndarray[Any, numpy.dtype[{_of_library(scalar)}]]"
    return head
