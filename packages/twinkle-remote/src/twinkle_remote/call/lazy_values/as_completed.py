"""The pieces of a call's result, each as soon as its data rank has it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

from twinkle_remote.call.collect import ranks_read
from twinkle_remote.call.lazy_values.awaiting import answer_of
from twinkle_remote.call.lazy_values.call_result import CallResult
from twinkle_remote.call.lazy_values.first_over import first_over
from twinkle_remote.call.lazy_values.lazy import Lazy, call_of, lazy_part, source_of
from twinkle_remote.call.pending.part import part_of
from twinkle_remote.failures.frames import plain_interrupt

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence

    from twinkle_remote.call.pending.pending_call import PendingCall

R = TypeVar("R", covariant=True)
T = TypeVar("T")


@overload
def as_completed(lazy: Awaitable[T]) -> AsCompleted[T]: ...
@overload
def as_completed(lazy: T) -> AsCompleted[T]: ...
def as_completed(lazy: Any) -> AsCompleted[Any]:
    """Iterate, with `for` or `async for`, over the pieces of a result in the order in which data ranks finish them.

    Each piece is a lazy result that stays on its workers and has a `data_rank`. The piece of a rank that failed, or
    that is late at the call's deadline, comes too: using it raises. A value that is not lazy is its only piece.

    Args:
        lazy: The result of a call.

    Raises:
        ValueError: The function has `uneven="pad"`, so pieces may have repeated rows, or `balance=`, so pieces may have
            any rows; or the value stands for rows of several calls, as a table and a result with `adds=` do.
    """
    return AsCompleted(lazy)


class AsCompleted(Generic[R]):
    """The pieces of one result; each iteration begins with the first piece.

    Args:
        lazy: The result.
    """

    def __init__(self, lazy: Lazy[R]) -> None:
        self._lazy = lazy
        if type(lazy) is Lazy and not isinstance(source_of(lazy), CallResult):
            raise ValueError(
                f"{lazy!r} stands for rows of several calls, or for a table of such: use as_completed on their results"
            )
        if type(lazy) is Lazy and call_of(lazy).spec.uneven == "pad":
            name = call_of(lazy).name
            raise ValueError(f'{name} says uneven="pad", so a piece may hold repeated rows; use get(lazy)')
        if type(lazy) is Lazy and call_of(lazy).spec.balance is not False:
            name = call_of(lazy).name
            raise ValueError(f"{name} says balance=, so a piece may hold any of the rows; use get(lazy)")

    def __iter__(self) -> Iterator[Lazy[R]]:
        if type(self._lazy) is not Lazy:
            yield self._lazy
            return
        with plain_interrupt():
            left = _parts(call_of(self._lazy))
        while left:
            with plain_interrupt():
                over = first_over(left)
            assert over is not None
            left.remove(over)
            yield lazy_part(self._lazy, over)

    async def __aiter__(self) -> AsyncIterator[Lazy[R]]:
        if type(self._lazy) is not Lazy:
            yield self._lazy
            return
        left = await _in_thread(lambda: _parts(call_of(self._lazy)))
        while left:
            over = await answer_of(
                left, lambda seconds: first_over(left, seconds) is not None, lambda: first_over(left)
            )
            assert over is not None
            left.remove(over)
            yield lazy_part(self._lazy, over)


async def _in_thread(function: Any) -> Any:
    from asyncio import to_thread  # half of this package's import time, and few await

    return await to_thread(function)


def _parts(call: PendingCall) -> list[PendingCall]:
    """The call on the ranks of each data rank, in data order."""
    call = call.by_rank()
    return [part_of(call, ranks, data_rank) for data_rank, ranks in data_peers(call, by_worker=_by_worker(call))]


def _by_worker(call: PendingCall) -> bool:
    """Whether each called worker has rows of its own, which only an outcome may show."""
    if call.each is None:
        first = first_over([part_of(call, [rank], 0) for rank in call.ranks])
        if first is None or first.failed() or not first.done():
            return call.spec.dispatch == "slice"
        return first.outcome(first.ranks[0]).rows_given is not None
    return call.each


def data_peers(call: PendingCall, *, by_worker: bool) -> Sequence[tuple[int, Sequence[int]]]:
    """Each data rank with its called ranks, the one whose value counts first, in data order.

    Args:
        call: The call.
        by_worker: Each called worker has rows of its own.
    """
    mesh = call.mesh
    read = ranks_read(replace(call.spec, collect="flatten", weight=None), call.ranks, mesh, each=by_worker)
    if mesh is None or len(call.ranks) != mesh.world_size:
        return list(enumerate([rank] for rank in read))
    if by_worker:
        return [(mesh.data_rank(rank), [rank]) for rank in read]
    peers = [[rank, *(peer for peer in mesh.same_data(rank) if peer != rank)] for rank in read]
    return cast("Sequence[tuple[int, Sequence[int]]]", list(enumerate(peers)))
