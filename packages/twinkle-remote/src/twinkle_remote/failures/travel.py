"""Exceptions that travel: a worker's exception is captured as a failure, and made again on the caller.

`pickle` itself calls an exception's constructor with its `args`, and fails if one attribute does not pickle. Here each
part is pickled by itself: its type, arguments, attributes and cause. It is made again without its constructor.
"""

from __future__ import annotations

import inspect
import pickle
import traceback
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from twinkle_remote.context import is_machinery_file
from twinkle_remote.errors import CallCancelledError, RemoteCallError, TwinkleError
from twinkle_remote.protocol.messages import Failure, exception_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from twinkle_remote.protocol.messages import WorkerInfo


def capture(error: BaseException, label: str, info: WorkerInfo, method: str, *, live: bool) -> Failure:
    """Turn the exception of a user's method into a failure that pickles; a live one keeps the exception itself."""
    return Failure(
        label=label,
        node=f"{info.node} pid {info.pid}",
        type_name=_type_name(error),
        message=_message(error),
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


def _message(error: BaseException) -> str:
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


def bare_new(cls: type) -> Callable[..., Any]:
    """The `__new__` that only makes an object of a class.

    It is the one of the nearest base in C that lays out the object's memory: CPython refuses every other one.
    """
    base: type | None = cls
    while base is not None:
        found = vars(base).get("__new__")
        if found is not None and inspect.isbuiltin(found):
            return cast("Callable[..., Any]", found)
        base = base.__base__
    return object.__new__


_DEEPEST = 8  # causes, and groups in groups
_RAISED = "__twinkle_raised__"


class Parts(NamedTuple):
    """The parts of an exception.

    Attributes:
        args: Its arguments, as its built-in base class takes them.
        attributes: Its attributes, with those that a built-in class such as `ImportError` keeps.
        cause: What it was raised from; None without one.
    """

    args: tuple[Any, ...]
    attributes: Mapping[str, Any]
    cause: BaseException | None


def parts_of(error: BaseException) -> Parts:
    """The parts of an exception; slots, and the object of an `AttributeError`, are not among them."""
    _, args, *state = _built_in(type(error)).__reduce__(error)
    if isinstance(error, BaseExceptionGroup):
        args = (error.message, list(error.exceptions))
    return Parts(args, {**(state[0] if state and state[0] else {}), **vars(error)}, error.__cause__)


def remade(kind: Any, parts: Parts) -> Any:
    """An exception of a type with the given parts; its constructor is not called.

    Raises:
        Exception: The type refuses to be made like this.
    """
    error = bare_new(kind)(kind, *parts.args)
    _built_in(kind).__init__(error, *parts.args)  # `OSError` and others take their fields from it
    cause = {} if parts.cause is None else {"__cause__": parts.cause}
    for name, value in {**parts.attributes, **cause}.items():
        object.__setattr__(error, name, value)  # the class may refuse to be written on, as a frozen dataclass does
    return error


def _built_in(kind: type) -> Any:
    """The nearest base that Python itself defines."""
    return next(each for each in kind.__mro__ if each.__module__ == "builtins" and _RAISED not in vars(each))


def raised_type(kind: type) -> Any:
    """The type that a worker raised first, if the error passed through several calls."""
    return getattr(kind, _RAISED, kind)


@lru_cache(maxsize=256)
def both_type(kind: Any) -> Any:
    """A subclass of an exception's type and of `RemoteCallError`; one for each type."""
    if issubclass(kind, RemoteCallError):
        return kind
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    travel = {"__reduce__": _reduce, "__reduce_ex__": _reduce}
    return type(kind)(kind.__name__, (RemoteCallError, kind), {**names, **travel, _RAISED: kind})


def combined_error(original: BaseException | None, text: str, failures: Sequence[Failure]) -> RemoteCallError:
    """The caller's error: a `RemoteCallError` that is also an instance of the type that the worker raised."""
    error: Any = RemoteCallError(text)
    if isinstance(original, Exception):
        try:
            error = remade(both_type(raised_type(type(original))), parts_of(original))
        except Exception:  # the type refuses subclasses or copies; the text remains
            error = RemoteCallError(text)
    object.__setattr__(error, "_text", text)
    object.__setattr__(error, "failures", tuple(failures))
    return error  # type: ignore[no-any-return]  # of a type that is made here


_Packed = tuple[Any, ...]
"""The parts of an exception, each pickled by itself: the arguments of `_opened`."""


def error_to_bytes(error: BaseException, dumps: Callable[[Any], bytes] = pickle.dumps) -> bytes:
    """A pickled exception for `exception_of`; empty if its type does not pickle.

    Args:
        error: The exception.
        dumps: Pickles a value; that of cloudpickle pickles classes of the program by value.
    """
    try:
        data = dumps((_opened, _packed(error, dumps, 0)))
        return data if isinstance(exception_of(data), type(error)) else b""
    except Exception:  # the user's class may raise anything
        return b""


def _packed(error: BaseException, dumps: Callable[[Any], bytes], depth: int) -> _Packed:
    args, attributes, cause = parts_of(error)
    within: tuple[_Packed, ...] = ()
    if isinstance(error, BaseExceptionGroup) and depth < _DEEPEST:
        args, within = (error.message,), tuple(_packed(one, dumps, depth + 1) for one in error.exceptions)
    return (
        raised_type(type(error)),
        isinstance(error, RemoteCallError),
        tuple(_part(arg, dumps) or pickle.dumps(repr(arg)) for arg in args),
        {name: data for name, value in attributes.items() if (data := _part(value, dumps))},
        within,
        None if cause is None or depth >= _DEEPEST else _packed(cause, dumps, depth + 1),
    )


def _part(value: Any, dumps: Callable[[Any], bytes]) -> bytes:
    """A pickled argument or attribute; empty if it does not pickle, such as a lock."""
    try:
        data = dumps(value)
        pickle.loads(data)
    except Exception:  # whatever its class raises
        return b""
    return data


def _opened(
    kind: Any,
    both: bool,
    args: tuple[bytes, ...],
    attributes: Mapping[str, bytes],
    within: tuple[_Packed, ...],
    cause: _Packed | None,
) -> Any:
    """An exception of its parts; `both` if it was a `RemoteCallError` too, `within` for those of a group."""
    given = (*map(pickle.loads, args), *([[_opened(*one) for one in within]] if within else []))
    own = {name: pickle.loads(data) for name, data in attributes.items()}
    parts = Parts(given, own, None if cause is None else _opened(*cause))
    return remade(both_type(kind) if both else kind, parts)


def _reduce(error: RemoteCallError, protocol: object = None) -> tuple[Any, ...]:
    return _opened, _packed(error, pickle.dumps, 0)
