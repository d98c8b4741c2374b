"""The identity of a worker, and the record of its failure."""

from __future__ import annotations

import os
import pickle
import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """The identity of a worker, for error messages and log lines.

    Attributes:
        group: Name of the group.
        rank: Rank in [0, size - 1].
        size: Number of workers of the group.
        node: Host name of the worker.
        pid: Process id on that host.
    """

    group: str
    rank: int
    size: int
    node: str = ""
    pid: int = 0

    def label(self, coordinate: Mapping[str, int] | None = None) -> str:
        """The short name of the worker: `actor[3/8 dp=1 tp=1]`."""
        place = "".join(f" {dim}={index}" for dim, index in (coordinate or {}).items())
        return f"{self.group}[{self.rank}/{self.size}{place}]"


def here(group: str, rank: int, size: int) -> WorkerInfo:
    """The info of a worker that runs in this process."""
    return WorkerInfo(group, rank, size, socket.gethostname(), os.getpid())


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of one rank, in a form that always pickles.

    Attributes:
        label: The worker, with its coordinate.
        node: Host and pid.
        type_name: Qualified name of the exception's type.
        message: Its text.
        method: Class.method that raised.
        trace: The worker's traceback, user frames only.
        pickled: The pickled exception; empty if it does not pickle.
        died: The worker ended before it answered, and no method raised.
        unanswered: The worker is alive, but its answer is lost: the call may or may not have run.
        upstream: This rank did not run, because the call of one of its arguments failed.
        repeated: An earlier failure has reported this worker's death.
        note: A further line for the caller: where the call was saved; empty without one.
        live: The exception itself, in backends that share the process.
    """

    label: str
    node: str
    type_name: str
    message: str
    method: str = ""
    trace: str = ""
    pickled: bytes = b""
    died: bool = False
    unanswered: bool = False
    upstream: bool = False
    repeated: bool = False
    note: str = ""
    live: BaseException | None = None

    def __reduce__(self) -> tuple[type[Failure], tuple[object, ...]]:
        texts = (self.label, self.node, self.type_name, self.message, self.method, self.trace)
        return Failure, (*texts, self.pickled, self.died, self.unanswered, self.upstream, self.repeated, self.note)

    def as_upstream(self) -> Failure:
        """The same failure, for the calls that take the failed result as an argument."""
        return replace(self, upstream=True)

    def exception(self) -> BaseException | None:
        """The exception that the worker raised; None if it could not be pickled."""
        if self.live is not None:
            return self.live
        if not self.pickled:
            return None
        try:
            loaded = pickle.loads(self.pickled)
        except Exception:  # the type may not be importable here: the text remains
            return None
        return loaded if isinstance(loaded, BaseException) else None
