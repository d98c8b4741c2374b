"""The errors of loading data; all of them are `TwinkleError`s."""

from __future__ import annotations

from typing import Any

from twinkle_remote.errors import TwinkleError


class StateMismatchError(TwinkleError, ValueError):
    """A saved state belongs to another dataset, seed or algorithm; the message shows both sides."""


class RanksDifferError(TwinkleError, ValueError):
    """The ranks of a loader have different datasets, so rows would be repeated or missing."""


class NotResumableError(TwinkleError):
    """An iterable dataset cannot go to the requested position."""


class LoaderProcessError(TwinkleError, RuntimeError):
    """Loader processes died or hung more often than `restarts` allows."""


class BadSampleError(TwinkleError):
    """A sample cannot be read.

    The error that a loop sees is also an instance of the type that was raised while reading.

    Attributes:
        index: Index of the sample in the dataset; -1 if no single sample caused it.
    """

    index: int = -1
    _text: str = ""

    def __str__(self) -> str:
        return self._text or super().__str__()

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._text, self.index, self.__cause__ if isinstance(self.__cause__, Exception) else None)


def bad_sample(text: str, index: int, cause: Exception | None) -> BadSampleError:
    """An error that names a sample and can be caught by the type of its cause."""
    error = BadSampleError()
    # A StopIteration out of a loader's __next__ would end the epoch (PEP 479).
    if cause is not None and not isinstance(cause, (BadSampleError, StopIteration)):
        try:
            both = _both(type(cause))
            error = both.__new__(both, *cause.args)
            error.args = cause.args
        except TypeError:  # the type refuses subclasses, or its constructor these arguments
            error = BadSampleError()
    error._text = text
    error.index = index
    error.__cause__ = cause
    return error


# One class for each type, so that a copy from another process is an instance of the same class.
_CLASSES: dict[type[Exception], type[BadSampleError]] = {}


def _both(kind: type[Exception]) -> type[BadSampleError]:
    if kind not in _CLASSES:
        _CLASSES[kind] = type(kind.__name__, (BadSampleError, kind), {"__module__": kind.__module__})
    return _CLASSES[kind]


def _restore(text: str, index: int, cause: Exception | None) -> BadSampleError:
    return bad_sample(text, index, cause)
