"""The remote functions of served classes: their options and signatures, by name."""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from twinkle_remote.component.handle import SPECIAL
from twinkle_remote.component.method import simple_counts
from twinkle_remote.http.server.body import RefusedError
from twinkle_remote.protocol.marks import options_of
from twinkle_remote.protocol.targets import attribute_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinkle_remote.protocol.spec import FunctionSpec


@lru_cache(maxsize=4096)
def signature_of(function: Callable[..., Any]) -> tuple[inspect.Signature, range]:
    """The signature, and the numbers of positional arguments that always fit it."""
    signature = inspect.signature(function)
    return signature, simple_counts(signature)


@lru_cache(maxsize=4096)
def served_function(cls: type, name: str) -> tuple[FunctionSpec, Any]:
    """The options of a remote function, and the function; None for a special method without options of its own.

    Raises:
        RefusedError: It is none.
    """
    found = attribute_at(cls, name)
    spec = options_of(found)
    if spec is not None and (not name.startswith("_") or name in SPECIAL):
        return spec, found.fget if isinstance(found, property) else found
    if name in SPECIAL and callable(getattr(cls, name, None)):
        return SPECIAL[name], None
    raise not_served(cls, name)


def not_served(cls: type, name: str) -> RefusedError:
    """The answer for a name that is no remote function of a class."""
    return RefusedError(403, f"{name[:80]!a} is no remote function of {cls.__name__}", "NotServed")
