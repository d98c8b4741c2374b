"""Errors in plain JSON: a status, a type and a message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinkle_http.plain.json_client import JsonAnswer
from twinkle_http.server.calls.served_call import first_of
from twinkle_remote.errors import (
    CallTimeoutError,
    DispatchError,
    NotInitializedError,
    PlacementError,
    RemoteCallError,
    TwinkleError,
)

if TYPE_CHECKING:
    from twinkle_http.server.requests.body import RefusedError

_MOST_CHARACTERS = 2000


def answer_of(status: int, kind: str, message: str, call: str = "") -> JsonAnswer:
    """The answer for an error."""
    text = message.encode("utf-8", "replace").decode("utf-8")[:_MOST_CHARACTERS]
    return JsonAnswer(status, b"", call, kind, text)


def refusal_of(error: RefusedError, call: str = "") -> JsonAnswer:
    """The answer to a refused request."""
    return answer_of(error.status, error.kind, error.why, call)


def described(error: Exception, *, sent: bool = True) -> tuple[int, str, str]:
    """Status, type and message of a failed call.

    Args:
        error: Its error.
        sent: The call was sent to its workers: what they raise is no fault of the request.
    """
    _, _, kind, message, _ = first_of(error)
    name = kind.rpartition(".")[2]
    if isinstance(error, CallTimeoutError):
        return 504, name, message
    if isinstance(error, NotInitializedError):
        return 503, name, message
    if isinstance(error, RemoteCallError):
        return 500, name, message
    if isinstance(error, PlacementError | DispatchError):
        return 400, name, message
    if not sent and isinstance(error, TwinkleError | TypeError | RecursionError):
        return 400, name, message
    return 500, name, message
