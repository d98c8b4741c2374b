"""The options that the decorators store on classes and functions, and the functions that read them."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, cast

from twinkle_remote.protocol.component import REMOTE

if TYPE_CHECKING:
    from twinkle_remote.protocol.spec import Execute, FunctionSpec

CONCURRENCY = "__twinkle_concurrency__"
PREFETCH = "__twinkle_prefetch__"
SPEC = "__twinkle_spec__"
SUBMIT = "__twinkle_submit__"
NAMES = "__twinkle_names__"
ITSELF = "__twinkle_itself__"  # a remote function, also where a decorator has copied its attributes


def mark_class(cls: Any, execute: Execute, prefetch: int | None, concurrency: int) -> None:
    """Store the options of a class."""
    setattr(cls, CONCURRENCY, concurrency)
    setattr(cls, REMOTE, execute)
    setattr(cls, PREFETCH, prefetch)


def execute_of(cls: type) -> Execute:
    """The ranks on which objects of a remote class are built."""
    return cast("Execute", getattr(cls, REMOTE))


def concurrency_of(cls: type) -> int:
    """The number of async calls of one object that run at once on a worker."""
    return cast("int", getattr(cls, CONCURRENCY))


def options_of(found: object) -> FunctionSpec | None:
    """The options of a remote function, or of a property with a remote getter; None for other values."""
    if isinstance(found, property):
        found = found.fget
    return cast("FunctionSpec | None", getattr(found, SPEC, None))


def options_under(cls: type, name: str) -> FunctionSpec | None:
    """The options of the class attribute with this name; None if it is not remote."""
    return options_of(inspect.getattr_static(cls, name, None))


def prefetch_of(cls: Any) -> int:
    """Number of steps that an iteration requests ahead: the class's option, else 1 where that has no effect, else 0.

    A `state_dict` would include a step ahead. And when a loop breaks off, a step ahead must be kept if `__iter__`
    continues, and dropped if `__iter__` restarts. Only an `__iter__` that just returns the component is sure to
    continue.
    """
    option = getattr(cls, PREFETCH, None)
    if option is not None:
        return int(option)
    code = getattr(inspect.unwrap(getattr(cls, "__iter__", len)), "__code__", None)
    returns_itself = code is not None and code.co_argcount == 1 and code.co_code == _returns_itself.__code__.co_code
    return int(returns_itself and not hasattr(cls, "state_dict"))


def _returns_itself(self: object) -> object:
    return self
