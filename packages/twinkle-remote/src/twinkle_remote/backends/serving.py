"""The face for authors of a server of sessions: the session, remote functions of its classes, and rows of results."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from twinkle_remote.call.send import OPENING, check_all_ended, start
from twinkle_remote.component.construct import (
    GROUP,
    INSTANCE,
    MESH,
    constructor_signature,
    declared_keywords,
    release_all,
    unintercepted,
)
from twinkle_remote.component.method import SPECIAL, check_arguments, positional_names, step_options
from twinkle_remote.context import called_from, ping
from twinkle_remote.lazy.lazy import CallResult
from twinkle_remote.lazy.table import known_rows
from twinkle_remote.protocol.messages import Call
from twinkle_remote.protocol.spec import NAMES, FunctionSpec, options_of
from twinkle_remote.serving import DRAIN_SECONDS, ServeOptions
from twinkle_remote.sessions.session import Runtime as ServedSession
from twinkle_remote.sessions.session import running as running_session

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_remote.protocol.messages import Component, Kind

__all__ = [
    "DRAIN_SECONDS",
    "GROUP",
    "INSTANCE",
    "MESH",
    "CallResult",
    "ServeOptions",
    "ServedSession",
    "called_from",
    "check_all_ended",
    "constructor_signature",
    "declared_keywords",
    "known_rows",
    "presence",
    "release_all",
    "remote_function",
    "remote_names",
    "running_session",
    "start",
    "unintercepted",
]


@dataclass(frozen=True, slots=True)
class RemoteFunction:
    """A remote function of a class.

    Attributes:
        kind: Kind of its calls: "method", "iterate" or "next".
        name: The name of the class's attribute.
        spec: Its options.
        function: The function; None for a step of an iteration, and for a special method without options of its own.
        signature: Its signature; None likewise.
    """

    kind: Kind
    name: str
    spec: FunctionSpec
    function: Callable[..., Any] | None = None
    signature: inspect.Signature | None = None

    def call(
        self,
        component: Component,
        line: str,
        args: tuple[Any, ...] = (),
        kwargs: Any = None,
    ) -> Call:
        """A call of it, for a caller elsewhere.

        Args:
            component: The component.
            line: File and line of the caller.
            args: Positional arguments.
            kwargs: Keyword arguments; None for none.

        Raises:
            TypeError: The arguments do not fit it.
        """
        kwargs = kwargs or {}
        if self.signature is None:
            names: Sequence[str] = [f"args[{i}]" for i in range(len(args))]
        else:
            check_arguments(component.name, self.name, self.signature, None, args, kwargs)
            names = positional_names(getattr(self.function, NAMES), len(args))
        return Call(
            self.kind, component, self.name, f"{component.name}.{self.name}", self.spec, line, names, args, kwargs
        )


@lru_cache(maxsize=4096)
def remote_function(cls: type, name: str) -> RemoteFunction | None:
    """A remote function of a class; None if it has none of this name.

    `__iter__` and `__next__` are the steps of an iteration, and other special methods those that a handle has.
    """
    if name in ("__iter__", "__next__"):
        if not callable(getattr(cls, "__iter__", None)):
            return None
        is_first = name == "__iter__"
        return RemoteFunction("iterate" if is_first else "next", name, OPENING if is_first else step_options(cls))
    found = inspect.getattr_static(cls, name, None)
    spec = options_of(found)
    if spec is None or (name.startswith("_") and name not in SPECIAL):
        is_special = name in SPECIAL and callable(getattr(cls, name, None))
        return RemoteFunction("method", name, SPECIAL[name]) if is_special else None
    function: Any = found.fget if isinstance(found, property) else found
    signature = inspect.signature(function)
    return RemoteFunction("method", name, spec, function, signature)


def remote_names(cls: type) -> Sequence[str]:
    """The names of the remote functions of a class, sorted; those of special methods last."""
    plain = [name for name in dir(cls) if not name.startswith("_")]
    special = ["__iter__", "__next__", *SPECIAL]
    return [name for name in (*plain, *special) if remote_function(cls, name) is not None]


def presence(component: Component, ranks: Sequence[int], line: str) -> Call:
    """A call that does nothing, of ranks of a component: it fails where a worker, or its part of it, is gone."""
    part = replace(component, ranks=tuple(ranks))
    return Call("function", part, ping, component.name, FunctionSpec(dispatch="all"), line)
