"""Makes objects without their constructor."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable


def bare_new(cls: type) -> Callable[..., Any]:
    """The `__new__` that only makes an object of a class.

    It is the one of the nearest base in C that lays out the object's memory: CPython refuses every other one.
    """
    base: type | None = cls
    while base is not None:
        found = vars(base).get("__new__")
        if found is not None and inspect.isbuiltin(found):
            return cast("Callable[..., Any]", found)
        base = base.__base__
    return object.__new__
