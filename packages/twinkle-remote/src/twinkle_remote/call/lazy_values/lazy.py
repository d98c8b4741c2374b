"""A lazy result: it stays on the workers, moves between them, and acts as its value when it is used."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from twinkle_remote.call.lazy_values.alive_lazies import ALIVE
from twinkle_remote.call.lazy_values.awaiting import answer_of
from twinkle_remote.call.lazy_values.call_result import CallResult
from twinkle_remote.call.lazy_values.lazy_operators import LazyOperators
from twinkle_remote.errors import TwinkleError
from twinkle_remote.failures.frames import plain_interrupt
from twinkle_remote.interpreter_end import unless_ending
from twinkle_remote.values.rows import PLAIN
from twinkle_remote.values.snapshot import snapshot

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from twinkle_remote.call.lazy_values.lazy_source import LazySource
    from twinkle_remote.call.pending.pending_call import PendingCall
    from twinkle_remote.protocol.handed import HandOver

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
                with plain_interrupt():
                    self._value = (cast("R", self._source.value(timeout)),)
            except TwinkleError as error:
                raise error.with_traceback(None) from error.__cause__  # hides the frames of this package
        return self._value[0]

    def hand_over(self) -> R:
        """This lazy result itself, typed as its value: for the arguments of another remote call."""
        return cast("R", self)

    def cancel(self) -> None:
        """Cancel the call if it has not ended; return at once. A call that is done does not change.

        A coroutine, or a step of an async generator, is cancelled at its next await. A `def` method that has not begun
        does not run, and its result raises `CallCancelledError`. A `def` method that has begun runs to its end. So does
        a collective method (`collective=True`) of several ranks, because some of them may have begun.

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
    def data_rank(self) -> int:
        """The data rank of a piece of `as_completed` or of a generator's item; the value's own attribute elsewhere."""
        calls = self._source.calls
        rank = calls[0].data_rank if len(calls) == 1 else None
        return cast("int", cast("Any", self.result()).data_rank) if rank is None else rank

    @property
    def info(self) -> Any:
        """The `RowsInfo` of a batch that a stream delivered; the value's own attribute elsewhere."""
        return cast("Any", self.result()).info if self._rows is None else self._rows

    def wait(self, timeout: float | None = None) -> None:
        """Wait for every worker without fetching the value; raises the same errors as `result`."""
        if self._value is None:
            with plain_interrupt():
                self._source.wait(timeout)

    @unless_ending
    def __del__(self) -> None:
        ALIVE.discard(id(self))
        try:
            source = self._source
        except AttributeError:  # it was not made to its end
            return
        source.released()

    def __await__(self) -> Generator[Any, None, R]:
        return answer_of(self._source.calls, self._source.ends_within, self.result).__await__()

    def __repr__(self) -> str:
        state = "fetched" if self._value is not None else self._source.state()
        return f"<Lazy {self._source.describe()}, {state}>"

    def _repr_html_(self) -> str:
        """The call, its state, and a value that is here already, for a notebook; never waits and never fetches."""
        from twinkle_remote.call.lazy_values.notebook import lazy_html  # its import takes milliseconds

        return lazy_html(self._source, self._value)

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

    def __replace__(self, **changes: Any) -> Any:
        """`copy.replace` of the value."""
        return cast("Any", self.result()).__replace__(**changes)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and name not in _NAMED_TUPLE:
            raise AttributeError(f"{name} is private, and not read through a lazy result: use its value, get(x)")
        with plain_interrupt():
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


def hand_over(lazy: Lazy[Any], offset: int) -> tuple[Sequence[tuple[PendingCall, int]], HandOver]:
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
