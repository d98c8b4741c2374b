"""`get`, and walks that find the lazy results inside of a value."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from twinkle_remote.errors import TwinkleError
from twinkle_remote.lazy.lazy import Lazy
from twinkle_remote.rows.cut import PLAIN
from twinkle_remote.rows.plain import map_parts, snapshot
from twinkle_remote.running import any_lazy

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_STAYS: frozenset[Any] = PLAIN | {Lazy}

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
K = TypeVar("K")
T = TypeVar("T")


@overload
def get(value: Lazy[T], timeout: float | None = None) -> T: ...
@overload
def get(value: list[Lazy[T]], timeout: float | None = None) -> list[T]: ...
@overload
def get(value: tuple[Lazy[A], Lazy[B]], timeout: float | None = None) -> tuple[A, B]: ...
@overload
def get(value: tuple[Lazy[A], Lazy[B], Lazy[C]], timeout: float | None = None) -> tuple[A, B, C]: ...
@overload
def get(value: tuple[Lazy[T], ...], timeout: float | None = None) -> tuple[T, ...]: ...
@overload
def get(value: dict[K, Lazy[T]], timeout: float | None = None) -> dict[K, T]: ...
@overload
def get(value: Coroutine[Any, Any, T], timeout: float | None = None) -> T: ...
@overload
def get(value: T, timeout: float | None = None) -> T: ...
def get(value: Any, timeout: float | None = None) -> Any:
    """The value of a lazy result, in every mode; other values are returned unchanged.

    Args:
        value: A lazy result, or lists, tuples, dicts and dataclasses with lazy results inside, at any depth.
        timeout: Seconds to wait for all of them together, in addition to the calls' deadlines; None adds no limit.

    Raises:
        RemoteCallError: A worker raised; the error is also an instance of the raised type.
        WorkerDiedError: A worker was lost.
        CallTimeoutError: The time is over.
        CollectError: The results do not fit the function's collect.
        ValueError: The value contains itself.
    """
    if type(value) is Lazy:
        return value.result(timeout)
    until = None if timeout is None else time.monotonic() + timeout

    def result(lazy: Lazy[Any]) -> Any:
        return lazy.result(None if until is None else max(0.0, until - time.monotonic()))

    try:
        return replace_lazy(value, result)
    except RecursionError as error:
        if isinstance(error, TwinkleError):  # a method has raised it
            raise
        raise ValueError(
            f"a {type(value).__name__} contains itself, or is nested too deeply to look for lazy results in it"
        ) from None


def replace_lazy(value: Any, new: Callable[[Lazy[Any]], Any]) -> Any:
    """A value with each lazy result inside replaced by `new(lazy)`; the value itself if there is none.

    Raises:
        RecursionError: The value contains itself.
    """
    if not any_lazy():
        return value

    def walk(part: Any) -> Any:
        kind = type(part)
        if kind in PLAIN or ((kind is list or kind is tuple) and PLAIN.issuperset(map(type, part))):
            return part
        return new(part) if kind is Lazy else map_parts(part, walk)

    return walk(value)


def as_now(value: T) -> T:
    """A value as it is now, for a later reader: its owner may write to it. Lazy results in it stay themselves."""
    return cast("T", snapshot(value, keep=True, frozen=False, leave=_STAYS))
