"""The ends of iterators, and the errors that Python would take for one in the caller's loop."""

from __future__ import annotations

from twinkle_remote.errors import RemoteCallError
from twinkle_remote.failures.reraise import combined_error

SIGNALS = (StopIteration, StopAsyncIteration)


class EndedError(Exception):
    """An iterator or generator on a worker is at its end; no exception of a user's method says so."""


def no_end(error: BaseException) -> BaseException:
    """The error for the caller's loop: the same one, or one of its text if Python would take it as the loop's end."""
    if not isinstance(error, SIGNALS):
        return error
    if isinstance(error, RemoteCallError):
        return combined_error(RuntimeError(str(error)), str(error), error.failures)  # as PEP 479
    return RuntimeError(f"{type(error).__name__} was raised, which would end the loop: {error}")
