"""The description of served classes, as it travels."""

from __future__ import annotations

from typing import Any

import msgspec

OPTIONS = (
    "dispatch",
    "execute",
    "collect",
    "sync",
    "lazy_collect",
    "timeout",
    "split",
    "replicate",
    "uneven",
    "weight",
    "balance",
)
"""The options of a remote function that a stub repeats."""


class DescribedParameter(msgspec.Struct):
    """A parameter: its type as text, what of it is not known, its kind, and its default as text."""

    name: str
    type: str
    note: str
    kind: str
    default: str | None


class DescribedMethod(msgspec.Struct):
    """A remote function, or a special method."""

    name: str
    text: str
    property: bool
    form: str
    options: dict[str, Any] | None
    parameters: list[DescribedParameter]
    returns: str
    note: str


class DescribedClass(msgspec.Struct):
    """A served class."""

    name: str
    title: str
    text: str
    bases: list[str]
    execute: str
    prefetch: int
    parameters: list[DescribedParameter]
    placement: list[str]
    methods: list[DescribedMethod]


class DescribedType(msgspec.Struct):
    """A dataclass, a named tuple or an enum: fields are name, type, what of it is not known, and default."""

    name: str
    title: str
    text: str
    kind: str
    fields: list[tuple[str, str, str, str | None]] = []
    members: list[tuple[str, str]] = []
    frozen: bool = False


class Description(msgspec.Struct):
    """A server's description of its classes."""

    classes: list[DescribedClass]
    types: list[DescribedType]
