"""A lazy result: it stays on the workers, moves between them, and acts as its value when it is used."""

from __future__ import annotations

import operator
import sys
import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

from twinkle_remote.call.lazy_values.awaiting import answer_of
from twinkle_remote.call.lazy_values.lazy_operators import LazyOperators
from twinkle_remote.call.lazy_values.lazy_source import CallResult
from twinkle_remote.errors import TwinkleError
from twinkle_remote.failures.frames import users_part
from twinkle_remote.rows.cut import PLAIN
from twinkle_remote.rows.plain import map_parts, snapshot
from twinkle_remote.running import ALIVE, any_lazy
from twinkle_remote.sessions.current import raise_not_retrieved

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Sequence

    from twinkle_remote.call.lazy_values.lazy_source import LazySource
    from twinkle_remote.call.pending.pending_call import PendingCall
    from twinkle_remote.tables.nodes import LazyArgument


T = TypeVar("T")
R = TypeVar("R", covariant=True)
_NAMED_TUPLE = frozenset({"_asdict", "_field_defaults", "_fields", "_make", "_replace"})
_SAVED_BY_TORCH = 2  # the pickle protocol of torch.save, and of nothing else that is current


class Lazy(LazyOperators, Generic[R]):
    """The result of a remote call.

    Iterating, indexing, comparing, arithmetic, `len`, `bool`, attributes, and the functions of numpy and torch use the
    value: they wait for it and fetch it to this process, once. A lazy result inside the arguments of a remote call is
    not fetched here: each worker reads the rows that it needs from the workers that made them.
    Code that checks the type (`isinstance`, `json`, `match`, `dataclasses.replace`, `torch.save`) needs `get(lazy)`.

    Args:
        call: The call in flight.
        itself: The value if the method returned the component: the caller's handle.
    """

    __slots__ = ("__weakref__", "_rows", "_source", "_value")

    def __init__(self, call: PendingCall, itself: object = None) -> None:
        self._source: LazySource = CallResult(call, itself)
        self._value: tuple[R] | None = None
        self._rows: object = None
        ALIVE.add(id(self))

    def result(self, timeout: float | None = None) -> R:
        """The value, collected on this process.

        Args:
            timeout: Seconds to wait, in addition to the call's deadline; None adds no limit.

        Raises:
            RemoteCallError: A worker raised; the error is also an instance of the raised type.
            WorkerDiedError: A worker was lost.
            CallTimeoutError: The time is over.
            CollectError: The results do not fit the function's collect.
            NotInitializedError: The session ended before the value was fetched.
        """
        if self._value is None:
            try:
                raise_not_retrieved()
                self._value = (cast("R", self._source.value(timeout)),)
            except TwinkleError as error:
                raise error.with_traceback(users_part(error.__traceback__)) from error.__cause__
        return self._value[0]

    def hand_over(self) -> R:
        """This lazy result itself, typed as its value: for the arguments of another remote call."""
        return cast("R", self)

    def cancel(self) -> None:
        """Cancel the call if it has not ended; return at once. A call that is done does not change.

        A coroutine is cancelled at its next await. A `def` method that has not begun does not run, and its result
        raises `CallCancelledError`. A `def` method that has begun runs to its end. So does a collective method
        (`collective=True`) of several ranks, because some of them may have begun.

        Raises:
            ValueError: It stands for rows of several calls, such as a stream's batch.
        """
        if len(self._source.own_calls) != 1:
            raise ValueError(f"{self!r} stands for rows of several calls: cancel the calls, or close the stream")
        if self._value is None:
            self._source.own_calls[0].withdraw()

    def done(self) -> bool:
        """Whether every worker has answered; never waits."""
        return self._value is not None or self._source.done()

    @property
    def info(self) -> Any:
        """The `RowsInfo` of a batch that a stream delivered; the value's own attribute elsewhere."""
        return cast("Any", self.result()).info if self._rows is None else self._rows

    def wait(self, timeout: float | None = None) -> None:
        """Wait for every worker without fetching the value; raises the same errors as `result`."""
        if self._value is None:
            raise_not_retrieved()
            self._source.wait(timeout)

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_ending():  # the names of modules are gone, and all that it would end
            return
        ALIVE.discard(id(self))
        try:
            source = self._source
        except AttributeError:  # it was not made to its end
            return
        source.released()

    def __await__(self) -> Generator[Any, None, R]:
        return answer_of(self._source.calls, self.result).__await__()

    def __repr__(self) -> str:
        state = "fetched" if self._value is not None else self._source.state()
        return f"<Lazy {self._source.describe()}, {state}>"

    def __str__(self) -> str:
        return str(self.result())

    def __format__(self, spec: str) -> str:
        return format(self.result(), spec)

    def __call__(self) -> R:
        """Short form of `result`."""
        return self.result()

    def __hash__(self) -> int:
        """Hash by identity, in an event loop only, for `asyncio.gather`: equality compares values."""
        from asyncio import get_running_loop  # as above

        try:
            get_running_loop()
        except RuntimeError:
            raise TypeError(f"{self!r} is no member of a set and no key of a dict: use its value, get(x)") from None
        return object.__hash__(self)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, tuple[Any, ...]]:
        if protocol == _SAVED_BY_TORCH:
            raise TypeError(f"{self!r} is not saved itself, but its value is: torch.save(get(x), path)")
        return operator.getitem, ((self.result(),), 0)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and name not in _NAMED_TUPLE:
            raise AttributeError(f"{name} is private, and not read through a lazy result: use its value, get(x)")
        return getattr(self.result(), name)

    def __setitem__(self, key: object, item: object) -> None:
        raise TypeError(f"{self!r} stands for what is on the workers: change a value of your own, x = get(lazy)")


def lazy_over(source: LazySource) -> Lazy[Any]:
    """A lazy result that stands for something else than the result of one call."""
    lazy: Lazy[Any] = object.__new__(Lazy)
    lazy._source, lazy._value, lazy._rows = source, None, None
    ALIVE.add(id(lazy))
    return lazy


def set_rows_info(lazy: Lazy[Any], rows: object) -> None:
    """Give a lazy result the `info` of its rows."""
    lazy._rows = rows


def get_rows_info(lazy: Lazy[Any]) -> object:
    """The info of its rows that a lazy result was given; None without."""
    return lazy._rows


def source_of(lazy: Lazy[Any]) -> LazySource:
    """The source of a lazy result, for which it stands."""
    return lazy._source


def call_of(lazy: Lazy[Any]) -> PendingCall:
    """The call of a lazy result that stands for one call."""
    (call,) = lazy._source.calls
    return call


def calls_of(lazy: Lazy[Any]) -> Sequence[PendingCall]:
    """The calls that make a lazy result."""
    return lazy._source.calls


def lazy_part(lazy: Lazy[R], call: PendingCall) -> Lazy[R]:
    """A lazy result for a part of the call of another one."""
    return Lazy(call, lazy._source.itself if isinstance(lazy._source, CallResult) else None)


def hand_over(lazy: Lazy[Any], offset: int) -> tuple[Sequence[tuple[PendingCall, int]], LazyArgument]:
    """The call and the rank of each outcome that a consumer reads, and how the outcomes become the value.

    Args:
        lazy: The lazy result.
        offset: Index of its first outcome among the consumer's inputs.
    """
    return lazy._source.hand_over(offset)


_STAYS: frozenset[Any] = PLAIN | {Lazy}


def as_now(value: T) -> T:
    """A value as it is now, for a later reader: its owner may write to it. Lazy results in it stay themselves."""
    return cast("T", snapshot(value, keep=True, frozen=False, leave=_STAYS))


A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
K = TypeVar("K")


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
