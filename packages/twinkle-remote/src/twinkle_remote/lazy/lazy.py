"""A lazy result: it stays on the workers, moves between them, and acts as its value when it is used; and `get`."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, cast, overload

from twinkle_remote.call.collect import combine, combined_by, ranks_read
from twinkle_remote.context import ALIVE, any_lazy, in_event_loop, refuse_own_rank, users_part
from twinkle_remote.errors import DispatchError, TwinkleError
from twinkle_remote.lazy.operators import LazyOperators
from twinkle_remote.protocol.messages import Itself
from twinkle_remote.rows.cut import PLAIN
from twinkle_remote.rows.plain import map_parts, snapshot
from twinkle_remote.sessions.pending_calls import answer_of, wait_for_one
from twinkle_remote.sessions.session import raise_not_retrieved
from twinkle_remote.tables.nodes import Input, LazyArgument, StoredRows

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence

    from twinkle_remote.call.pending import PendingCall


R = TypeVar("R", covariant=True)


class LazySource(ABC):
    """The source of a lazy result's value: the result of one call, rows of several, or a table over such.

    Args:
        calls: The calls that make it; at least one, perhaps several times.

    Attributes:
        calls: The calls, each once.
    """

    __slots__ = ("calls",)

    def __init__(self, calls: Iterable[PendingCall]) -> None:
        self.calls = tuple(dict.fromkeys(calls))

    @abstractmethod
    def value(self, timeout: float | None) -> Any:
        """Wait for it and fetch it to this process; see `Lazy.result`."""

    @abstractmethod
    def describe(self) -> str:
        """The calls, and where they run."""

    @abstractmethod
    def hand_over(self, offset: int) -> tuple[Sequence[tuple[PendingCall, int]], LazyArgument]:
        """The call and the rank of each outcome that a consumer reads, and how the outcomes become the value.

        Args:
            offset: Index of the first of them among the consumer's inputs.
        """

    def released(self) -> None:
        """Called when the lazy result is deleted."""
        for call in self.calls:
            call.released()

    def done(self) -> bool:
        """Whether every worker has answered; never waits."""
        return all(call.done() for call in self.calls)

    def state(self) -> str:
        """A short text of its state; never waits."""
        if len(self.calls) == 1:
            return self.calls[0].state()
        if any(call.failed() for call in self.calls):
            return "failed"
        done = sum(call.done() for call in self.calls)
        return "done" if done == len(self.calls) else f"{done} of {len(self.calls)} calls done"

    def wait(self, timeout: float | None) -> None:
        """Wait for every call without fetching; the first failure among them is raised at once."""
        if len(self.calls) == 1:
            self.calls[0].wait(timeout)
            return
        until = None if timeout is None else time.monotonic() + timeout
        while open_ones := [call for call in self.calls if not call.done() or call.failed()]:
            over = [call for call in open_ones if call.is_over or call.overdue()]
            left = None if until is None else max(0.0, until - time.monotonic())
            if over or len(open_ones) == 1:
                min(over or open_ones, key=lambda call: call.failed_at()).wait(left)
            elif left == 0.0:
                raise open_ones[0].lateness(timeout)
            else:
                for call in open_ones:
                    refuse_own_rank(call.waited_for())
                wait_for_one(open_ones, until)


class CallResult(LazySource):
    """The result of one call: the values of its ranks, combined by the function's collect.

    Args:
        call: The call in flight.
        itself: The value if the method returned the component itself: the caller's handle.
    """

    __slots__ = ("_itself",)

    def __init__(self, call: PendingCall, itself: object = None) -> None:
        self.calls, self._itself = (call,), itself
        call.held = True

    def value(self, timeout: float | None) -> Any:
        """Wait for it and fetch it to this process; see `Lazy.result`."""
        (call,) = self.calls
        began = time.monotonic()
        call.wait(timeout)
        read = ranks_read(call.spec, call.ranks, call.mesh, each=bool(call.each))
        outcomes = [call.outcome(rank) for rank in read]
        by = combined_by(call.spec, call.ranks, call.mesh, call.name).over(outcomes)
        value = combine(by, [call.fetch(outcome, timeout, began) for outcome in outcomes])
        if value is Itself.ITSELF or (isinstance(value, list) and value and value[0] is Itself.ITSELF):
            return self._itself
        return value

    def describe(self) -> str:
        """Class.method, group, number of workers, mesh."""
        (call,) = self.calls
        return f"{call.name} on {call.call.where()}"

    def hand_over(self, offset: int) -> tuple[Sequence[tuple[PendingCall, int]], LazyArgument]:
        """The outcomes that a consumer reads, and how they become the value; see `LazySource`."""
        (call,) = self.calls
        call.handed_on = True
        each = call.each
        ranks = ranks_read(call.spec, call.ranks, call.mesh, each=each is not False)
        once = None
        if each is None:  # only the outcomes show whether each worker has a value, or each data rank
            counted = ranks_read(call.spec, call.ranks, call.mesh, each=False)
            once = None if counted == ranks else tuple(ranks.index(rank) for rank in counted)
        of = tuple([StoredRows(Input(offset + index)) for index in range(len(ranks))])
        by = combined_by(call.spec, call.ranks, call.mesh, call.name)
        return [(call, rank) for rank in ranks], LazyArgument(replace(by, of=of, once=once))


class Lazy(LazyOperators, Generic[R]):
    """The result of a remote call.

    Iterating, indexing, comparing, arithmetic, `len`, `bool`, attributes, and the functions of numpy and torch use the
    value: they wait for it and fetch it to this process, once. A lazy result inside the arguments of a remote call is
    not fetched here: each worker reads the rows that it needs from the workers that made them.
    Code that checks the type (`isinstance`, `json`, `match`, `dataclasses.replace`, `torch.save`) needs `get(lazy)`.
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
        if len(self._source.calls) != 1:
            raise ValueError(f"{self!r} stands for rows of several calls: cancel the calls, or close the stream")
        if self._value is None:
            self._source.calls[0].cancel()

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
        if not in_event_loop():
            raise TypeError(f"{self!r} is no member of a set and no key of a dict: use its value, get(x)")
        return object.__hash__(self)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise DispatchError(
            f"{self!r} is not pickled, but its value is: get(x). To another call it goes as an argument, or as an item "
            "of a list, a tuple, a dict or a dataclass"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{name} is private, and not read through a lazy result: use its value, get(x)")
        return getattr(self.result(), name)


def lazy_over(source: LazySource) -> Lazy[Any]:
    """A lazy result that stands for something else than the result of one call."""
    lazy: Lazy[Any] = object.__new__(Lazy)
    lazy._source, lazy._value, lazy._rows = source, None, None
    ALIVE.add(id(lazy))
    return lazy


def set_rows_info(lazy: Lazy[Any], rows: object) -> None:
    """Give a lazy result the `info` of its rows."""
    lazy._rows = rows


def source_of(lazy: Lazy[Any]) -> LazySource:
    """The source of a lazy result, for which it stands."""
    return lazy._source


def call_of(lazy: Lazy[Any]) -> PendingCall:
    """The call of a lazy result that stands for one call."""
    (call,) = lazy._source.calls
    return call


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
