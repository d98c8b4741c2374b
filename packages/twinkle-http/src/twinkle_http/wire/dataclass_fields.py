"""Dataclasses are built by their own code, so a message cannot skip the checks of a class."""

from __future__ import annotations

import dataclasses
import inspect
from functools import cache
from typing import TYPE_CHECKING, Any

from twinkle_http.wire.errors import WireFormatError, WireTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_ANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def check_built(kind: type, where: str) -> None:
    """Check that values of a dataclass can be built of their fields.

    Raises:
        WireTypeError: Its constructor takes other arguments, and it has no `__setstate__`.
    """
    if _taken(kind) is None and not callable(getattr(kind, "__setstate__", None)):
        raise WireTypeError(
            f"{where} is a {kind.__module__}.{kind.__qualname__}, whose constructor takes what is no field: give "
            "the class a __setstate__ that checks them, or use twinkle.register_type(cls, to_plain=..., from_plain=...)"
        )


def build(kind: Any, name: str, fields: Mapping[str, Any], are_same: Callable[[Any, Any], bool]) -> Any:
    """Build a value of a dataclass: by its constructor, or by `__setstate__` where that does not take the fields.

    Args:
        kind: The class.
        name: Its name in messages.
        fields: The value of every field.
        are_same: Whether two values are the same, in type too.

    Raises:
        WireFormatError: The class refuses the fields, or makes others of them.
    """
    taken = _taken(kind)
    try:
        if taken is None:
            made = object.__new__(kind)
            made.__setstate__(dict(fields))
        else:
            made = kind(**{key: item for key, item in fields.items() if key in taken})
    except Exception as error:  # it is the class's own
        raise WireFormatError(f"{name!r:.120} cannot be built of its fields: {error}") from error
    changed = [key for key, item in fields.items() if not are_same(getattr(made, key, dataclasses.MISSING), item)]
    if changed:
        raise WireFormatError(
            f"{name!r:.120} makes other values of the fields {', '.join(changed)} when it is built: use "
            "twinkle.register_type(cls, to_plain=..., from_plain=...)"
        )
    return made


@cache
def _taken(kind: Any) -> frozenset[str] | None:
    """The fields that the constructor takes; None if it needs something else."""
    names = {field.name for field in dataclasses.fields(kind)}
    parameters = inspect.signature(kind).parameters.values()
    needed = {one.name for one in parameters if one.default is one.empty and one.kind not in _ANY}
    if not needed <= names or not all(one.kind in _NAMED for one in parameters if one.name in needed):
        return None
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters):
        return frozenset(names)
    return frozenset(names & {one.name for one in parameters if one.kind in _NAMED})
