"""Turns a worker's exception into a failure that pickles."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from twinkle_remote.errors import CallCancelledError, RemoteCallError, TwinkleError
from twinkle_remote.failures.frames import is_machinery_file
from twinkle_remote.failures.travel import error_to_bytes
from twinkle_remote.protocol.failure import Failure

if TYPE_CHECKING:
    from twinkle_remote.protocol.failure import WorkerInfo


def capture(error: BaseException, label: str, info: WorkerInfo, method: str, *, live: bool) -> Failure:
    """Turn the exception of a user's method into a failure that pickles.

    Args:
        error: The exception.
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
        pickled=b"" if live else error_to_bytes(error),
        live=error if live else None,
    )


def was_cancelled(failure: Failure) -> bool:
    """Whether a failure is that of a call that was cancelled."""
    return failure.type_name == CallCancelledError.__name__


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
    """The tracebacks of the exception and its causes, with the user's frames only."""
    try:
        parts = traceback.TracebackException.from_exception(error)
        _keep_user_frames(parts, set())
        if not parts.stack and isinstance(error, TwinkleError):  # of a call that a method has made and left
            return str(error).partition("\n")[2] if isinstance(error, RemoteCallError) else ""
        return "".join(parts.format()).rstrip()
    except Exception as broken:  # formatting runs the user's code: attributes and text of the exception
        return f"<the traceback could not be read: {type(broken).__name__}: {broken}>"


def _keep_user_frames(parts: traceback.TracebackException | None, seen: set[int]) -> None:
    if parts is None or id(parts) in seen:
        return
    seen.add(id(parts))
    parts.stack = traceback.StackSummary.from_list(
        [frame for frame in parts.stack if not is_machinery_file(frame.filename)]
    )
    for other in (parts.__cause__, parts.__context__, *(parts.exceptions or ())):
        _keep_user_frames(other, seen)
