"""What the decorators leave on classes and functions, and how it is read back."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, cast

from twinkle_remote.protocol.component import REMOTE

if TYPE_CHECKING:
    from twinkle_remote.protocol.spec import Execute, FunctionSpec

PREFETCH = "__twinkle_prefetch__"
SPEC = "__twinkle_spec__"
SUBMIT = "__twinkle_submit__"
NAMES = "__twinkle_names__"


def mark_class(cls: Any, execute: Execute, prefetch: int | None) -> None:
    """Write down a class's options."""
    setattr(cls, REMOTE, execute)
    setattr(cls, PREFETCH, prefetch)


def execute_of(cls: type) -> Execute:
    """Where objects of a remote class are built."""
    return cast("Execute", getattr(cls, REMOTE))


def options_of(found: object) -> FunctionSpec | None:
    """The options of a remote function, or of a property whose getter is one; None for anything else."""
    if isinstance(found, property):
        found = found.fget
    return cast("FunctionSpec | None", getattr(found, SPEC, None))


def options_under(cls: type, name: str) -> FunctionSpec | None:
    """The options of what a class has under a name."""
    return options_of(inspect.getattr_static(cls, name, None))


def prefetch_of(cls: Any) -> int:
    """How many steps of an iteration are asked for ahead: what the class says, else 1 where nobody can notice, else 0.

    A step ahead shows in a `state_dict`. And when a loop breaks off, the step that it left behind has to be dropped
    where `__iter__` starts afresh, and kept where it goes on: only one that does nothing but return the component
    surely goes on.
    """
    said = getattr(cls, PREFETCH, None)
    if said is not None:
        return int(said)
    code = getattr(inspect.unwrap(getattr(cls, "__iter__", len)), "__code__", None)
    goes_on = code is not None and code.co_argcount == 1 and code.co_code == _returns_itself.__code__.co_code
    return int(goes_on and not hasattr(cls, "state_dict"))


def _returns_itself(self: object) -> object:
    return self
