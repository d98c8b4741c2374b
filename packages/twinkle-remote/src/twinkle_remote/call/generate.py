"""The items of a remote generator, in the caller's loop: each comes as soon as a data rank has yielded it.

Each data rank's generator is advanced by calls of its own, a few items ahead of the loop, in turn with the component's
other calls. So an item is a lazy result as any other, and a loop may call the same component.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from twinkle_remote.call.arguments import RunsOnce
from twinkle_remote.call.lazy_values.as_completed import data_peers
from twinkle_remote.call.lazy_values.awaiting import answer_of
from twinkle_remote.call.lazy_values.first_over import first_over
from twinkle_remote.call.lazy_values.lazy import Lazy
from twinkle_remote.call.start import start
from twinkle_remote.errors import CollectError, TwinkleError
from twinkle_remote.failures.ends import SIGNALS, no_end
from twinkle_remote.failures.frames import call_line, plain_interrupt
from twinkle_remote.interpreter_end import unless_ending
from twinkle_remote.protocol.backend import InProcessBackend
from twinkle_remote.protocol.call import Call
from twinkle_remote.protocol.spec import FunctionSpec
from twinkle_remote.sessions.current import running
from twinkle_remote.sessions.signals.background import close_at_end, in_background

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.call.pending.pending_call import PendingCall
    from twinkle_remote.protocol.component import Component

R = TypeVar("R", covariant=True)
AHEAD = 2  # items of each data rank that are asked for beyond the one that the loop takes next
_END: Any = object()
_numbers = count()


@dataclass(slots=True, eq=False)
class _DataRank:
    """The generators of one data rank: its tensor, context and pipeline peers yield together.

    Attributes:
        index: The data rank.
        component: The component on these ranks alone, the one whose items count first.
        asked: Calls for the next items, in order.
    """

    index: int
    component: Component
    asked: deque[PendingCall] = field(default_factory=deque)


class RemoteGenerator(RunsOnce, Generic[R]):
    """Iterator and async iterator over the items of a generator on workers.

    Items of several data ranks come in the order in which they are made; each is a lazy result with a `data_rank`.
    A data rank is at most three items ahead of the loop. The end of the loop closes the generators on their workers.

    Args:
        call: The call; its target is the method's name, and its deadline counts for each item.
        itself: The caller's handle, or the component itself.
        lazy: Whether items are lazy; None follows the function's option, then the runtime's.
    """

    def __init__(self, call: Call, itself: object, *, lazy: bool | None = None) -> None:
        runtime, spec = running(), call.spec
        if lazy is None:
            lazy = runtime.lazy_collect if spec.lazy_collect is None else spec.lazy_collect
        self._name = call.name
        self._key = f"{os.getpid():x}-{os.urandom(4).hex()}-{next(_numbers)}"
        self._spec = FunctionSpec(dispatch="all", collect="first", form=spec.form)
        self._timeout = call.deadline
        self._itself = itself
        self._lazy = lazy
        self._left: list[_DataRank] = []
        self._ahead = 0 if isinstance(runtime.backend, InProcessBackend) else AHEAD
        self._opened = opened = start(replace(call, target=(call.target, self._key)), held=True)
        by_worker = opened.each is True or (opened.each is None and spec.dispatch == "slice")
        for index, ranks in data_peers(opened, by_worker=by_worker):
            self._left.append(_DataRank(index, replace(call.component, ranks=tuple(ranks))))
        close_at_end(self)
        if self._ahead:
            self._ask()

    def __iter__(self) -> RemoteGenerator[R]:
        return self

    def __next__(self) -> Lazy[R]:
        with plain_interrupt():
            item = self._take_unended()
        if item is _END:
            raise StopIteration
        taken: Lazy[R] = item
        return taken

    def __aiter__(self) -> RemoteGenerator[R]:
        return self

    async def __anext__(self) -> Lazy[R]:
        item = await answer_of(self._waited_for(), self._is_ready, self._take_unended)
        if item is _END:
            raise StopAsyncIteration
        taken: Lazy[R] = item
        return taken

    def close(self) -> None:
        """Close the generators on their workers, whose `finally` then runs, and wait for it.

        Raises:
            TwinkleError: As for any call; a `finally` may raise.
        """
        calls = self._close(held=True)
        for call in calls:
            call.wait()

    async def aclose(self) -> None:
        """`close` for an event loop."""
        from asyncio import to_thread  # half of this package's import time, and few await

        await to_thread(self.close)

    @unless_ending
    def __del__(self) -> None:
        if self.__dict__.get("_left"):
            in_background(self._close)  # the garbage collector may run inside of another call

    def __repr__(self) -> str:
        return f"<items of {self._name} from {len(self._left)} data ranks>"

    def _take_unended(self) -> Any:
        """`_take`, whose errors do not end a loop."""
        try:
            return self._take()
        except SIGNALS as signal:
            raise no_end(signal) from signal.__cause__

    def _take(self) -> Any:
        """The next item; `_END` after the last one. A failure ends the iteration."""
        while self._left:
            self._ask()
            call = first_over([one.asked[0] for one in self._left])
            assert call is not None
            one = next(one for one in self._left if one.asked[0] is call)
            one.asked.popleft()
            try:
                if self._ends(call):
                    self._left.remove(one)
                    continue
            except BaseException as error:
                self._close()
                if isinstance(error, TwinkleError):
                    raise error.with_traceback(None) from error.__cause__  # the text says where; our frames do not
                raise
            item: Lazy[Any] = Lazy(call, self._itself)
            return item if self._lazy else item.result()
        return _END

    def _ends(self, call: PendingCall) -> bool:
        """Whether a data rank's generator is at its end, after waiting for the step.

        Raises:
            TwinkleError: The step, or what its arguments need, failed.
        """
        if self._opened.failed():
            self._opened.wait()
        call.wait()
        ended = call.ended()
        if any(ended):
            self._opened.wait()  # one that was never opened has no items either
        if any(ended) and not all(ended):
            at_end = [rank for rank, end in zip(call.ranks, ended, strict=True) if end]
            raise CollectError(
                f"{self._name}: ranks {at_end} are at their end and the others of {list(call.ranks)} are not; every "
                "rank of a data rank yields the same number of items"
            )
        return all(ended)

    def _waited_for(self) -> Sequence[PendingCall]:
        return [one.asked[0] for one in self._left if one.asked]

    def _is_ready(self, seconds: float) -> bool:
        if not self._left:
            return True
        self._ask()
        return first_over([one.asked[0] for one in self._left], seconds) is not None

    def _ask(self) -> None:
        for one in self._left:
            while len(one.asked) <= self._ahead:
                steps = len(one.asked) + 1  # the steps that were asked for before take their time first
                seconds = None if self._timeout is None else self._timeout * steps
                spec = replace(self._spec, timeout=seconds)
                item = Call("item", one.component, self._key, self._name, spec, call_line(), reads_ranks=True)
                call = start(item, prefetched=True)
                call.data_rank = one.index
                one.asked.append(call)

    def _close(self, *, held: bool = False) -> Sequence[PendingCall]:
        """Begin to close the generators; returns the calls that do, which the caller waits for where they are held."""
        left, self._left = self._left, []
        self._opened.released()
        spec = replace(self._spec, timeout=self._timeout)
        for one in left:
            for call in one.asked:
                call.cancel()
        name, line = f"{self._name}.close", call_line()
        return [start(Call("close", one.component, self._key, name, spec, line), held=held) for one in left]
