"""Finds decorators above `@remote_function`, and other attributes that hide a remote function."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from twinkle_remote.component.method import CALLED_BY_PYTHON, check_at_once
from twinkle_remote.protocol.marks import ITSELF, options_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEPTH = 8  # decorators above each other
_HOLDERS = ("__func__", "__wrapped__", "func", "fget", "fset", "fdel")


def check_decorators(cls: type) -> None:
    """Refuse attributes of a class that hide a remote function: handles and workers could not call through them.

    A worker would run what hides it once more, or not at all.

    Raises:
        TypeError: There is one; the message names it.
    """
    own = [(name, value) for base in cls.__mro__[:-1] for name, value in vars(base).items()]
    reachable = {id(found) for _, value in own if (found := _remote(value)) is not None}
    for name, value in own:
        if _remote(value) is not None:
            spec = options_of(value)
            if name in CALLED_BY_PYTHON and spec is not None and (name, spec.form) != ("__iter__", "generator"):
                check_at_once(f"{cls.__name__}.{name}", spec.form)
            continue
        if isinstance(value, staticmethod | classmethod) and _remote(value.__func__) is not None:
            raise TypeError(
                f"{cls.__name__}.{name} is a {type(value).__name__} above @remote_function(), which is for methods of "
                "an object: make it a method, or call it here, without @remote_function()"
            )
        hidden = next(_hidden(value, reachable, _DEPTH), None)
        if hidden is not None:
            raise TypeError(
                f"a decorator above @remote_function() hides {hidden.__qualname__} behind {cls.__name__}.{name}: put "
                "it below @remote_function(), where it runs once for each worker"
            )


def _remote(value: Any) -> Any:
    """The remote function that an attribute is, or that reads the property that it is; None for another one."""
    found = value.fget if isinstance(value, property) else value
    return found if _own(found) else None


def _own(value: Any) -> bool:
    return callable(value) and getattr(value, ITSELF, None) is value


def _hidden(value: Any, reachable: set[int], depth: int) -> Iterator[Any]:
    """The remote functions that a value calls and that are no attributes themselves."""
    if depth == 0 or isinstance(value, type):
        return
    for part in _parts(value):
        if _own(part):
            if id(part) not in reachable:
                yield part
        elif callable(part):
            yield from _hidden(part, reachable, depth - 1)


def _parts(value: Any) -> Iterator[Any]:
    if hasattr(value, "__closure__"):
        for cell in value.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # not filled yet
                continue
    if isinstance(value, functools.partial | functools.partialmethod):
        yield from (value.func, *value.args)
        return
    for name in _HOLDERS:
        found = getattr(value, "__dict__", {}).get(name) if name == "__wrapped__" else _static(value, name)
        if found is not None:
            yield found
    if not hasattr(value, "__code__"):
        yield from vars(value).values() if hasattr(value, "__dict__") else ()


def _static(value: Any, name: str) -> Any:
    return getattr(value, name, None) if isinstance(value, property | staticmethod | classmethod) else None
