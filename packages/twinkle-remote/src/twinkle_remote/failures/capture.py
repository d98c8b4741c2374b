"""What travels when a worker fails, and how the driver says it."""

from __future__ import annotations

import os
import pickle
import socket
import sys
import traceback
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from twinkle_remote.errors import RemoteCallError, TwinkleError, WorkerDiedError
from twinkle_remote.failures.reraise import as_both

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType

_MACHINERY = ("twinkle_remote", "twinkle_mesh", "twinkle_ray", "twinkle_data", "twinkle")
_FOLDED = 8


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """Who a worker is, as error messages and log lines name it.

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
        """The worker in a few characters: `actor[3/8 dp=1 tp=1]`."""
        place = "".join(f" {dim}={index}" for dim, index in (coordinate or {}).items())
        return f"{self.group}[{self.rank}/{self.size}{place}]"


def here(group: str, rank: int, size: int) -> WorkerInfo:
    """The info of a worker that runs in this process."""
    return WorkerInfo(group, rank, size, socket.gethostname(), os.getpid())


@dataclass(frozen=True, slots=True)
class Failure:
    """One rank's failure, in a form that always pickles.

    Attributes:
        label: The worker, with its coordinate.
        node: Host and pid.
        type_name: Qualified name of the exception's type.
        message: Its text.
        method: Class.method that raised.
        trace: The worker's traceback, user frames only.
        pickled: The exception itself where it pickles, else empty.
        died: The worker is gone, and no method raised.
        upstream: This rank never ran: what it was to be given had failed.
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
    upstream: bool = False
    live: BaseException | None = None

    def __reduce__(self) -> tuple[type[Failure], tuple[object, ...]]:
        told = (self.label, self.node, self.type_name, self.message, self.method, self.trace)
        return Failure, (*told, self.pickled, self.died, self.upstream)

    def as_upstream(self) -> Failure:
        """The same failure as a call sees it that was to be given the result."""
        return replace(self, upstream=True)

    def exception(self) -> BaseException | None:
        """What the worker raised, or None when it could not travel."""
        if self.live is not None:
            return self.live
        if not self.pickled:
            return None
        try:
            loaded = pickle.loads(self.pickled)
        except Exception:  # the type may not be importable here: the text still tells
            return None
        return loaded if isinstance(loaded, BaseException) else None


def capture(error: BaseException, label: str, info: WorkerInfo, method: str, *, live: bool) -> Failure:
    """Turn an exception that a user's method raised into a failure that can travel.

    Args:
        error: What was raised.
        label: The worker, with its coordinate.
        info: The worker.
        method: Class.method that was running.
        live: Keep the exception object itself: the driver shares this process.
    """
    return Failure(
        label=label,
        node=f"{info.node} pid {info.pid}",
        type_name=_type_name(error),
        message=_text(error),
        method=method,
        trace=_user_trace(error),
        pickled=b"" if live else _pickle(error),
        live=error if live else None,
    )


def _type_name(error: BaseException) -> str:
    kind = type(error)
    ours = isinstance(error, TwinkleError) and not isinstance(error, RemoteCallError)
    return kind.__qualname__ if ours or kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _text(error: BaseException) -> str:
    try:
        text = str(error)
        return text.partition("\n")[0] if isinstance(error, RemoteCallError) else text
    except Exception as broken:  # a user's __str__ may itself fail
        return f"<str() of the exception raised {type(broken).__name__}>"


def _user_trace(error: BaseException) -> str:
    """The traceback and those of its causes, without the frames of the machinery between the user's own."""
    try:
        parts = traceback.TracebackException.from_exception(error)
        _keep_user_frames(parts, set())
        if not parts.stack and isinstance(error, TwinkleError):
            return ""
        return "".join(parts.format()).rstrip()
    except Exception as broken:  # it reads the exception's attributes and its text, which are the user's code
        return f"<the traceback could not be read: {type(broken).__name__}: {broken}>"


def _keep_user_frames(parts: traceback.TracebackException | None, seen: set[int]) -> None:
    if parts is None or id(parts) in seen:
        return
    seen.add(id(parts))
    parts.stack = traceback.StackSummary.from_list(
        [frame for frame in parts.stack if not _is_machinery_file(frame.filename)]
    )
    for other in (parts.__cause__, parts.__context__, *(parts.exceptions or ())):
        _keep_user_frames(other, seen)


def _pickle(error: BaseException) -> bytes:
    try:
        data = pickle.dumps(error)
        if not isinstance(pickle.loads(data), type(error)):
            return b""
    except Exception:  # such an exception cannot travel: type name, text and trace do
        return b""
    return data


_FOLDERS = tuple(f"{os.sep}{name}{os.sep}" for name in ("twinkle_remote", "twinkle_ray"))
_SUITE = os.path.join(_FOLDERS[0], "conformance") + os.sep


def _is_machinery_file(name: str) -> bool:
    return any(folder in name for folder in _FOLDERS) and _SUITE not in name


def user_stack(frame: FrameType | None, limit: int = 6) -> str:
    """Where a worker's code is: the innermost frames that are the user's, or what the machinery does instead."""
    stack = traceback.extract_stack(frame)
    own = [at for at in stack if not _is_machinery_file(at.filename)]
    below = [i for i, at in enumerate(stack) if _is_machinery_file(at.filename)]
    inside = [at for at in own if below and stack.index(at) > below[0]]
    return "".join(traceback.format_list((inside or stack)[-limit:]))


def driver_line() -> str:
    """File and line of the innermost caller outside of these packages: where the user made the call."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not _is_machinery(frame.f_globals.get("__name__", "")):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


@lru_cache(maxsize=1024)
def _is_machinery(module: str) -> bool:
    return module.partition(".")[0] in _MACHINERY and not module.startswith("twinkle_remote.conformance")


def raise_failures(name: str, group: str, failures: Sequence[Failure], line: str) -> None:
    """Raise the first failure, the others folded under it.

    Args:
        name: Class.method of the call.
        group: Name of the group that was called.
        failures: At least one, in completion order.
        line: File and line of the driver that made the call.

    Raises:
        WorkerDiedError: The first failure is a lost worker.
        RemoteCallError: Otherwise; also an instance of the type that the worker raised.
    """
    first = next((failure for failure in failures if not failure.upstream), failures[0])
    rest = [failure for failure in failures if failure is not first]
    text = _message(name, group, first, rest, line)
    if first.died:
        raise WorkerDiedError(text)
    error = as_both(first.exception(), text, (first, *rest))
    error.__context__ = first.live  # for a debugger; the text has it all
    raise error from None


def _message(name: str, group: str, first: Failure, rest: Sequence[Failure], line: str) -> str:
    if first.died:
        head = f"{first.label} died during {name} on {first.node or 'an unknown node'}: {first.message}"
    else:
        head = f"{first.method} failed on {first.label} (node {first.node}): {first.type_name}: {first.message}"
    if first.upstream:
        head = f"{name} did not run, because what it was to be given failed: {head}"
    rows = [head]
    if line:
        rows.append(f"  called from {line}")
    if first.trace:
        rows.append("  on the worker:")
        rows.extend("    " + row for row in first.trace.splitlines())
    if rest:
        rows.append(f"  and {len(rest)} more of group {group!r}, after it or because of it:")
        folded: dict[str, list[str]] = {}
        for failure in rest:
            folded.setdefault(f"{failure.type_name}: {failure.message[:200]}", []).append(failure.label)
        rows.extend(f"    {', '.join(labels)}: {what}" for what, labels in list(folded.items())[:_FOLDED])
        if len(folded) > _FOLDED:
            rows.append(f"    and {len(folded) - _FOLDED} other errors")
    return "\n".join(rows)
