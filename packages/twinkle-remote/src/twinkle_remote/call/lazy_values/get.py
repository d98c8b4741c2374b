"""`get` waits for the values of lazy results at any depth; `gather` awaits them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar, overload

from twinkle_remote.call.lazy_values.alive_lazies import any_lazy
from twinkle_remote.call.lazy_values.lazy import Lazy
from twinkle_remote.errors import TwinkleError
from twinkle_remote.failures.frames import plain_interrupt
from twinkle_remote.values.rows import PLAIN
from twinkle_remote.values.tree import map_parts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
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
        value: A lazy result, or lists, tuples, mappings and dataclasses with lazy results inside, at any depth.
        timeout: Seconds to wait for all of them together, in addition to the calls' deadlines; None adds no limit.

    Raises:
        RemoteCallError: A worker raised; the error is also an instance of the raised type.
        WorkerDiedError: A worker was lost.
        CallTimeoutError: The time is over.
        CollectError: The results do not fit the function's collect.
        ValueError: The value contains itself.
    """
    until = None if timeout is None else time.monotonic() + timeout

    def result(lazy: Lazy[Any]) -> Any:
        return lazy.result(None if until is None else max(0.0, until - time.monotonic()))

    try:
        with plain_interrupt():
            return replace_lazy(value, result)
    except RecursionError as error:
        if isinstance(error, TwinkleError):  # a method has raised it
            raise
        raise ValueError(
            f"a {type(value).__name__} contains itself, or is nested too deeply to look for lazy results in it"
        ) from None


@overload
def gather(first: Awaitable[A], /) -> Awaitable[tuple[A]]: ...
@overload
def gather(first: Awaitable[A], second: Awaitable[B], /) -> Awaitable[tuple[A, B]]: ...
@overload
def gather(first: Awaitable[A], second: Awaitable[B], third: Awaitable[C], /) -> Awaitable[tuple[A, B, C]]: ...
@overload
def gather(
    first: Awaitable[A], second: Awaitable[B], third: Awaitable[C], fourth: Awaitable[D], /
) -> Awaitable[tuple[A, B, C, D]]: ...
@overload
def gather(first: A, /) -> Awaitable[tuple[A]]: ...
@overload
def gather(first: A, second: B, /) -> Awaitable[tuple[A, B]]: ...
@overload
def gather(first: A, second: B, third: C, /) -> Awaitable[tuple[A, B, C]]: ...
@overload
def gather(first: A, second: B, third: C, fourth: D, /) -> Awaitable[tuple[A, B, C, D]]: ...
@overload
def gather(*values: Any) -> Awaitable[tuple[Any, ...]]: ...
async def gather(*values: Any) -> tuple[Any, ...]:
    """`get` of several values, awaited together.

    Args:
        *values: As for `get`.

    Raises:
        TwinkleError: As for `get`; the first failure is raised at once.
    """
    from asyncio import gather as together  # half of this package's import time, and few await

    found: list[Lazy[Any]] = []

    def note(lazy: Lazy[Any]) -> Lazy[Any]:
        found.append(lazy)
        return lazy

    replace_lazy(values, note)
    await together(*found)
    return tuple([get(value) for value in values])


def replace_lazy(value: Any, new: Callable[[Lazy[Any]], Any]) -> Any:
    """A value with each lazy result inside replaced by `new(lazy)`; the value itself if there is none.

    Raises:
        RecursionError: The value contains itself.
    """
    return _replaced(value, new) if any_lazy() else value


def _replaced(value: Any, new: Callable[[Lazy[Any]], Any]) -> Any:
    def walk(part: Any) -> Any:
        kind = type(part)
        if kind in PLAIN:
            return part
        if (kind is list or kind is tuple) and PLAIN.issuperset(map(type, part)):
            return part
        return new(part) if kind is Lazy else map_parts(part, walk, walk_subclass)

    def walk_subclass(leaf: Any) -> Any:
        """Make a plain list or tuple of a subclass if it contains a lazy result."""
        if not isinstance(leaf, list | tuple):
            return leaf
        items = list(leaf)
        plain: Any = items if isinstance(leaf, list) else tuple(items)
        fresh = walk(plain)
        return leaf if fresh is plain else fresh

    return walk(value)
