"""The face for authors of a server of sessions: the session, remote functions of its classes, and rows of results."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from twinkle_remote.call.iterate import OPENING, check_all_ended
from twinkle_remote.call.lazy_values.assembled import ResultRows, assemble
from twinkle_remote.call.lazy_values.call_result import CallResult
from twinkle_remote.call.lazy_values.lazy import call_of, lazy_part
from twinkle_remote.call.pending.part import part_of
from twinkle_remote.call.start import start
from twinkle_remote.call.tables.table_plan import table_by
from twinkle_remote.component.constructor import (
    GROUP,
    INSTANCE,
    MESH,
    constructor_signature,
    declared_keywords,
    unintercepted,
)
from twinkle_remote.component.handle import SPECIAL, step_options
from twinkle_remote.component.method import check_arguments, positional_names, simple_counts
from twinkle_remote.component.release import release_all
from twinkle_remote.context import leaving_running
from twinkle_remote.failures.frames import called_from
from twinkle_remote.protocol.call import Call
from twinkle_remote.protocol.marks import NAMES, options_of
from twinkle_remote.protocol.spec import FunctionSpec, whole_rows_options
from twinkle_remote.protocol.targets import attribute_at
from twinkle_remote.serving import DRAIN_SECONDS, ServeOptions
from twinkle_remote.sessions.current import running
from twinkle_remote.sessions.telemetry.worker_lines import listen
from twinkle_remote.streams.chunks.chunk_result import known_rows, pieces_of
from twinkle_remote.worker.ping import ping

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from twinkle_mesh import DeviceGroup
    from twinkle_remote.call.lazy_values.lazy import Lazy
    from twinkle_remote.protocol.backend import Backend
    from twinkle_remote.protocol.component import Component
    from twinkle_remote.protocol.messages import Kind

__all__ = [
    "DRAIN_SECONDS",
    "GROUP",
    "INSTANCE",
    "MESH",
    "CallResult",
    "RemoteFunction",
    "ServeOptions",
    "ServedSession",
    "called_from",
    "check_all_ended",
    "constructor_signature",
    "declared_keywords",
    "known_rows",
    "leaving_running",
    "listen",
    "presence",
    "rank_result",
    "release_all",
    "remote_function",
    "remote_names",
    "rows_of_results",
    "running_session",
    "start",
    "table_by",
    "unintercepted",
]


class ServedSession(Protocol):
    """The running session.

    Attributes:
        mode: Name of the backend.
        backend: The backend.
        groups: Groups by name; may be empty.
        closed: It has ended.
    """

    mode: str
    backend: Backend
    groups: dict[str, DeviceGroup]
    closed: bool


def running_session() -> ServedSession:
    """The running session.

    Raises:
        NotInitializedError: There is none.
    """
    return running()


@dataclass(frozen=True, slots=True)
class RemoteFunction:
    """A remote function of a class.

    Attributes:
        kind: Kind of its calls: "method", "generate", "iterate" or "next".
        name: What objects of the class find it by; see `target_of`.
        spec: Its options, for a caller that gets whole rows also if it adds columns.
        adding: Its options for a caller that joins the columns which it adds to the rows itself.
        function: The function; None for a step of an iteration, and for a special method without options of its own.
        signature: Its signature; None likewise.
        counts: The numbers of positional arguments that always fit.
    """

    kind: Kind
    name: str
    spec: FunctionSpec
    function: Callable[..., Any] | None = None
    signature: inspect.Signature | None = None
    counts: range = range(0)
    adding: FunctionSpec | None = None

    def call(
        self,
        component: Component,
        line: str,
        args: tuple[Any, ...] = (),
        kwargs: Any = None,
        *,
        adds: bool = False,
    ) -> Call:
        """A call of it, for a caller elsewhere.

        Args:
            component: The component.
            line: File and line of the caller.
            args: Positional arguments.
            kwargs: Keyword arguments; None for none.
            adds: Of a function that adds columns, the workers keep these alone: the caller joins them to the rows.

        Raises:
            TypeError: The arguments do not fit it.
        """
        kwargs = kwargs or {}
        if self.signature is None:
            names: Sequence[str] = [f"args[{i}]" for i in range(len(args))]
        else:
            if kwargs or len(args) not in self.counts:  # binding takes as long as the rest of a small call
                check_arguments(component.name, self.name, self.signature, None, args, kwargs)
            names = positional_names(getattr(self.function, NAMES), len(args))
        own = self.adding if adds and self.adding is not None else self.spec
        full, spec = f"{component.name}.{self.name}", own.of(component, self.name)
        return Call(self.kind, component, self.name, full, spec, line, names, args, kwargs)


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
    found = attribute_at(cls, name)
    spec = options_of(found)
    if spec is None or (name.startswith("_") and name not in SPECIAL):
        is_special = name in SPECIAL and callable(getattr(cls, name, None))
        return RemoteFunction("method", name, SPECIAL[name]) if is_special else None
    function: Any = found.fget if isinstance(found, property) else found
    signature = inspect.signature(function)
    kind: Kind = "generate" if spec.yields else "method"
    return RemoteFunction(kind, name, whole_rows_options(spec), function, signature, simple_counts(signature), spec)


def remote_names(cls: type) -> Sequence[str]:
    """The names of the remote functions of a class, sorted; those of special methods last."""
    plain = [name for name in dir(cls) if not name.startswith("_")]
    special = ["__iter__", "__next__", *SPECIAL]
    return [name for name in (*plain, *special) if remote_function(cls, name) is not None]


def presence(component: Component, ranks: Sequence[int], line: str) -> Call:
    """A call that does nothing, of ranks of a component: it fails where a worker, or its part of it, is gone."""
    part = replace(component, ranks=tuple(ranks))
    return Call("function", part, ping, component.name, FunctionSpec(dispatch="all"), line)


def rank_result(result: Lazy[Any], rank: int) -> Lazy[Any]:
    """The result of one rank of a call."""
    return lazy_part(result, part_of(call_of(result), [rank], 0))


def rows_of_results(pieces: Iterable[tuple[Lazy[Any], int | None, int, int]]) -> Lazy[Any]:
    """Rows of the results of several calls as one lazy result, in the order of the pieces.

    Args:
        pieces: At least one: the result of a call, the rank whose rows they are (None: rows of the whole result), the
            first row, and one past the last.

    Raises:
        ValueError: There is no piece, or the rows are out of range, or cannot be counted.
        DispatchError: A call returns tuples of columns, which have no common rows.
    """
    return assemble([rows for piece in pieces for rows in _rows_of(*piece)])


def _rows_of(result: Lazy[Any], rank: int | None, start: int, stop: int) -> Sequence[ResultRows]:
    call = call_of(result)
    if rank is not None:
        return [ResultRows(call, rank, start, stop)]
    found = pieces_of(result, start, stop)
    if not found:
        raise ValueError(f"the rows of {call.name} cannot be counted")
    return found
