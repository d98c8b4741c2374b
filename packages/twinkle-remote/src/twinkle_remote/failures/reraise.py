"""Makes the caller's error: a `RemoteCallError` that is also an instance of the type that the worker raised."""

from __future__ import annotations

import types
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from twinkle_remote.errors import RemoteCallError
from twinkle_remote.failures.bare import bare_new

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from twinkle_remote.protocol.failure import Failure

_CAUSE, _CONTEXT, _SUPPRESS = "__cause__", "__context__", "__suppress_context__"
_ARGS: Any = vars(BaseException)["args"]
_RAISED = "__twinkle_raised__"
_MEMBERS = (types.MemberDescriptorType, types.GetSetDescriptorType)


def combined_error(original: BaseException | None, text: str, failures: Sequence[Failure]) -> RemoteCallError:
    """The error to raise.

    Args:
        original: The worker's exception; None if it could not be pickled.
        text: The message.
        failures: The failure of each failed rank.
    """
    error = RemoteCallError(text)
    if isinstance(original, Exception):
        try:
            error = _like(original)
        except Exception:  # the type refuses subclasses or copies of its state; the text remains
            error = RemoteCallError(text)
    object.__setattr__(error, "_text", text)  # the type may refuse to be written on, as a frozen dataclass does
    object.__setattr__(error, "failures", tuple(failures))
    return error


def args_of(error: BaseException) -> tuple[Any, ...]:
    """The arguments of an exception, also of one whose class has an `args` of its own."""
    found: tuple[Any, ...] = _ARGS.__get__(error)
    return found


def _like(original: Exception) -> RemoteCallError:
    """An instance of both types with the original's state; its constructor is not called again."""
    both = both_type(raised_type(type(original)))
    error: RemoteCallError = remade(both, args_of(original), original.__dict__, members_of(original))
    return error


def members_of(error: BaseException) -> dict[str, Any]:
    """State of an exception besides `args` and `__dict__`: slots, fields of C classes, its cause and its context."""
    chain = {_CAUSE: error.__cause__, _CONTEXT: None if error.__context__ is error.__cause__ else error.__context__}
    found: dict[str, Any] = {name: other for name, other in chain.items() if other is not None}
    if error.__suppress_context__:
        found[_SUPPRESS] = True
    for name, member in _members(raised_type(type(error))):
        try:
            found[name] = member.__get__(error)
        except AttributeError:  # not set
            continue
    return found


def sent_members(error: BaseException) -> dict[str, Any]:
    """The state of `members_of` without the object of an AttributeError, which may be all that a worker holds."""
    found = members_of(error)
    if isinstance(error, AttributeError):
        found.pop("obj", None)
    return found


def remade(kind: Any, args: tuple[Any, ...], attributes: Mapping[str, Any], members: Mapping[str, Any]) -> Any:
    """An exception with the given type and state; its constructor is not called."""
    is_group = issubclass(kind, BaseExceptionGroup) and "exceptions" in members
    laid_out = (members["message"], members["exceptions"]) if is_group else args  # a group's class may take more
    error = bare_new(kind)(kind, *laid_out)
    set_state(error, attributes, members)
    _ARGS.__set__(error, args)
    return error


def set_state(error: Any, attributes: Mapping[str, Any], members: Mapping[str, Any]) -> None:
    """Give an exception attributes and what `members_of` found."""
    state = {**attributes, **members}  # of a class that travelled by value, slots are attributes on one side alone
    for name, member in _members(raised_type(type(error))):
        if name in state:
            _set_member(member, error, state.pop(name))
    cause = state.pop(_CAUSE, None)
    chain = {_CAUSE: cause, _CONTEXT: state.pop(_CONTEXT, cause)}
    for name, other in chain.items():
        if isinstance(other, BaseException):
            vars(BaseException)[name].__set__(error, other)
    vars(BaseException)[_SUPPRESS].__set__(error, state.pop(_SUPPRESS, False))
    error.__dict__.update(state)


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    for base in kind.__mro__:
        for name, member in vars(base).items():
            if isinstance(member, _MEMBERS) and not name.startswith("__") and name != "args":
                yield name, member


def _set_member(member: Any, error: BaseException, value: Any) -> None:
    try:
        member.__set__(error, value)
    except (AttributeError, TypeError):  # not for setting
        return


def raised_type(kind: type) -> Any:
    """The type that a worker raised first, if the error passed through several calls."""
    return getattr(kind, _RAISED, kind)


@lru_cache(maxsize=256)
def both_type(kind: type) -> type[RemoteCallError]:
    """A subclass of both types; one for each exception type."""
    if issubclass(kind, RemoteCallError):
        return kind
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    travel = {"__reduce__": _reduce, "__reduce_ex__": _reduce}
    both: type[RemoteCallError] = cast("Any", type(kind))(
        kind.__name__, (RemoteCallError, kind), {**names, **travel, _RAISED: kind}
    )
    return both


def _reduce(self: RemoteCallError, protocol: object = None) -> tuple[Any, ...]:
    kind = raised_type(type(self))
    return _restore, (kind, args_of(self), dict(self.__dict__), sent_members(self))


def _restore(kind: type, args: tuple[Any, ...], state: dict[str, Any], members: dict[str, Any]) -> RemoteCallError:
    error: RemoteCallError = remade(both_type(kind), args, state, members)
    return error
