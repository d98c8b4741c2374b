"""An exception of a worker as the caller gets it: a `RemoteCallError` that is also an instance of what was raised."""

from __future__ import annotations

import types
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from twinkle_remote.errors import RemoteCallError
from twinkle_remote.failures.bare import bare_new

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.protocol.failure import Failure

_RAISED = "__twinkle_raised__"
_MEMBERS = (types.MemberDescriptorType, types.GetSetDescriptorType)


def as_both(original: BaseException | None, text: str, failures: Sequence[Failure]) -> RemoteCallError:
    """The error to raise.

    Args:
        original: What the worker raised; None when it could not travel.
        text: The message.
        failures: What went wrong, on every rank that failed.
    """
    error = RemoteCallError(text)
    if isinstance(original, Exception):
        try:
            error = _like(original)
        except Exception:  # a type that refuses subclasses, or copies of its state: the text still tells
            error = RemoteCallError(text)
    error._text = text
    error.failures = tuple(failures)
    return error


def _like(original: Exception) -> RemoteCallError:
    """An instance of both types in the state of the original, made without calling its constructor again."""
    kind = _raised(type(original))
    both = both_type(kind)
    error: RemoteCallError = bare_new(both)(both, *original.args)
    for base in kind.__mro__:
        for name, member in vars(base).items():
            if isinstance(member, _MEMBERS) and not name.startswith("__"):
                _copy_member(member, original, error)
    error.args = original.args
    error.__dict__.update(original.__dict__)
    return error


def _copy_member(member: Any, original: Exception, error: Exception) -> None:
    try:
        member.__set__(error, member.__get__(original))
    except (AttributeError, TypeError):  # not set, or not for setting
        return


def _raised(kind: type) -> type:
    """The type that a worker raised first, where the error has come through several calls."""
    return getattr(kind, _RAISED, kind)


@lru_cache(maxsize=256)
def both_type(kind: type) -> type[RemoteCallError]:
    """A type that is both; one for each type."""
    if issubclass(kind, RemoteCallError):
        return kind
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    travel = {"__reduce__": _reduce, "__reduce_ex__": _reduce}
    both: type[RemoteCallError] = cast("Any", type(kind))(
        kind.__name__, (RemoteCallError, kind), {**names, **travel, _RAISED: kind}
    )
    return both


def _reduce(self: RemoteCallError, protocol: object = None) -> tuple[Any, ...]:
    kind = _raised(type(self))
    return _restore, (kind, self.args, dict(self.__dict__))


def _restore(kind: type, args: tuple[Any, ...], state: dict[str, Any]) -> RemoteCallError:
    both = both_type(kind)
    error: RemoteCallError = bare_new(both)(both, *args)
    error.args = args
    error.__dict__.update(state)
    return error
