"""Iterates a component in a driver's `for` loop: steps may be requested ahead, and no step is lost.

Every worker that holds the component runs each step. If a loop breaks off, its requested steps stay for the next loop
over the same handle, unless the component's `__iter__` returned another object: then the iteration starts again.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from twinkle_remote.call.lazy_values.lazy import Lazy
from twinkle_remote.call.start import start
from twinkle_remote.errors import CallTimeoutError, CollectError, TwinkleError
from twinkle_remote.failures.ends import SIGNALS, no_end
from twinkle_remote.failures.frames import call_line, plain_interrupt
from twinkle_remote.protocol.call import Call
from twinkle_remote.protocol.spec import FunctionSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twinkle_remote.call.pending.pending_call import PendingCall
    from twinkle_remote.protocol.component import Component

OPENING = FunctionSpec(dispatch="all", sync=True)


def check_all_ended(call: PendingCall) -> None:
    """Check that all ranks of a step are at their end, where one is.

    Raises:
        CollectError: Some are not.
    """
    ended = call.ended()
    if not all(ended):
        at_end = [rank for rank, end in zip(call.ranks, ended, strict=True) if end]
        raise CollectError(
            f"{call.name}: ranks {at_end} are at their end and the others of {list(call.ranks)} are not; every rank "
            "takes the same number of steps"
        )


class RemoteIterator:
    """The iterator of a component.

    Args:
        component: The component.
        spec: Options of each step; by default its rows are joined in data order.
        itself: The caller's handle of the component.
        ahead: Number of steps that are requested after the current one, at or above 0.
    """

    def __init__(self, component: Component, spec: FunctionSpec, itself: object, ahead: int = 1) -> None:
        self._component = component
        self._spec = spec
        self._itself = itself
        self._ahead = ahead
        self._steps: deque[PendingCall] = deque()
        self._continues = True
        self._ended = False

    def open(self) -> None:
        """Call `__iter__` on the workers; requested steps stay if the iteration continues the last loop."""
        if self._steps and self._continues:
            return
        name = f"{self._component.name}.__iter__"
        call = start(Call("iterate", self._component, "__iter__", name, OPENING, call_line()), held=True)
        call.wait()
        self._continues = all(call.fetch(call.outcome(rank)) for rank in call.ranks)
        self._steps.clear()
        self._ended = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with plain_interrupt():
            return self._next()

    def _next(self) -> Any:
        while not self._ended and len(self._steps) <= self._ahead:
            self._steps.append(self._ask())
        if not self._steps:
            raise StopIteration
        call = self._steps[0]
        try:
            call.wait()
        except CallTimeoutError:  # late, not lost: the following `next` waits for this step again
            raise
        except TwinkleError as error:
            self._steps.popleft()
            if isinstance(error, SIGNALS):
                raise no_end(error) from error.__cause__
            raise
        self._steps.popleft()
        ended = call.ended()
        if not any(ended):
            return Lazy(call, self._itself)
        self._ended = True
        self._steps.clear()
        check_all_ended(call)
        raise StopIteration

    def _ask(self) -> PendingCall:
        name = f"{self._component.name}.__next__"
        return start(Call("next", self._component, "__next__", name, self._spec, call_line()), prefetched=True)
