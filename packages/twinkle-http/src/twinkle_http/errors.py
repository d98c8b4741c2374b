"""Errors of the wire, and exceptions on the wire: the type by its name, the text, and the parts that travel."""

from __future__ import annotations

import builtins
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from twinkle_remote import errors
from twinkle_remote.backends.support import Parts, both_type, parts_of, raised_type, remade
from twinkle_remote.errors import (
    BackendError,
    DispatchError,
    NotInitializedError,
    RemoteCallError,
    SessionLostError,
    TwinkleError,
    WorkerDiedError,
)
from twinkle_remote.protocol import Failure
from twinkle_remote.rows import TYPES, name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_TEXTS = ("label", "node", "type_name", "message", "method", "trace", "note")
_FLAGS = ("died", "unanswered", "upstream", "repeated")
_LISTED, _MOST_LISTED = 200, 8  # characters of a further failure, and how many are named
_REFUSALS: Mapping[str, type[TwinkleError]] = {
    "Token": BackendError,
    "Restarted": SessionLostError,
    "LeaseEnded": SessionLostError,
    "Stopping": SessionLostError,
    "Unknown": NotInitializedError,
    "NotServed": DispatchError,
    "TooLarge": DispatchError,
    "Malformed": DispatchError,
}


class WireTypeError(DispatchError, TypeError):
    """A value of a type that cannot be sent; the message names the type, the place and what to use."""


class WireFormatError(TwinkleError, ValueError):
    """Bytes that are no message of this format, or exceed a limit."""


def refused(kind: str, message: str) -> TwinkleError:
    """The error of a caller whose request the server has refused."""
    return _REFUSALS.get(kind, TwinkleError)(message)


TYPES.add(
    Failure,
    plain=(
        lambda one: [*(_as_unicode(getattr(one, key)) for key in _TEXTS), *(getattr(one, key) for key in _FLAGS)],
        lambda parts: Failure(**dict(zip((*_TEXTS, *_FLAGS), parts, strict=True))),
    ),
)


def parts_of_error(error: BaseException, travels: Callable[[Any], bool]) -> list[Any]:
    """An exception as plain values: what does not travel of it becomes text, or stays behind.

    Args:
        error: The exception.
        travels: Whether a value can be sent.
    """
    given = parts_of(error)
    args = [arg if travels(arg) else _shown(arg) for arg in given.args]
    attributes = {key: item for key, item in given.attributes.items() if travels(item)}
    cause = given.cause if travels(given.cause) else None
    text = _as_unicode(_shown(error, str))
    return [name_of(raised_type(type(error))), isinstance(error, RemoteCallError), text, args, attributes, cause]


def error_of_parts(
    error_type: Callable[[str], type | None],
    name: str,
    remote: bool,
    text: str,
    args: Sequence[Any],
    attributes: Mapping[str, Any],
    cause: BaseException | None,
) -> BaseException:
    """The exception of a class that is found by its name; of another one with its text, if none is found."""
    error: Any = None
    kind = error_type(name)
    if kind is not None:
        whole: Any = both_type(cast("Any", kind)) if remote and issubclass(kind, Exception) else kind
        try:
            error = remade(whole, Parts(tuple(args), attributes, cause))
        except Exception:  # the class may refuse to be made like this; the text remains
            error = None
    if error is None:
        error = RemoteCallError(text if remote else f"{name}: {text}")
    if isinstance(error, RemoteCallError):
        error._text = text
        error.failures = tuple(attributes.get("failures", ()))
    return error  # type: ignore[no-any-return]  # made without a constructor


def failure_of(error: BaseException, request: str, *, upstream: bool) -> Failure:
    """The failure of a call that ended with an error at the server: that of its first rank, if ranks have failed.

    Args:
        error: The error.
        request: Id of the request.
        upstream: It is that of another call, whose result is an argument.
    """
    if isinstance(error, RemoteCallError) and error.failures:
        first, *rest = error.failures
        others = [f"{one.label}: {one.type_name}: {one.message[:_LISTED]}" for one in rest]
        more = [f"and {len(rest)} more, after it or because of it: {'; '.join(others[:_MOST_LISTED])}"] if rest else []
        return replace(first, live=error, note="\n  ".join([f"request {request}", *filter(None, [first.note]), *more]))
    died = isinstance(error, WorkerDiedError)
    return Failure("", "", type(error).__name__, str(error), died=died, upstream=upstream, live=error)


def own_error_type(name: str) -> type | None:
    """An exception class of Python's or of these packages, by its name; nothing is imported."""
    found = getattr(builtins, name.removeprefix("builtins."), None)
    if name.startswith(f"{errors.__name__}."):
        found = vars(errors).get(name.removeprefix(f"{errors.__name__}."))
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def _as_unicode(text: str) -> str:
    """A text that travels: escapes stand for lone surrogates, as those of file names that are no UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def _shown(value: object, shown: Callable[[Any], str] = repr) -> str:
    try:
        return shown(value)
    except Exception as broken:  # a user's __repr__ may itself fail
        return f"<{shown.__name__}() of a {type(value).__name__} raised {type(broken).__name__}>"
