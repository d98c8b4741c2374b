"""Iterates a component in a driver's `for` loop: each step is one call of all workers that hold the component."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_remote.call.send import start
from twinkle_remote.errors import CallTimeoutError, CollectError, TwinkleError
from twinkle_remote.failures.frames import call_line
from twinkle_remote.failures.report import SIGNALS, no_end
from twinkle_remote.lazy.lazy import Lazy
from twinkle_remote.protocol.call import Call
from twinkle_remote.protocol.spec import FunctionSpec
from twinkle_remote.sessions.current import raise_not_retrieved

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twinkle_remote.call.pending import PendingCall
    from twinkle_remote.protocol.call import Component

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
    """The iterator of a component; a step that is late is not lost: the following `next` waits for it again.

    Args:
        component: The component.
        spec: Options of each step; by default its rows are joined in data order.
        itself: The caller's handle of the component.
    """

    def __init__(self, component: Component, spec: FunctionSpec, itself: object) -> None:
        self._component, self._spec, self._itself = component, spec, itself
        self._step: PendingCall | None = None
        self._ended = False

    def open(self) -> None:
        """Call `__iter__` on the workers, and wait for it."""
        if self._step is not None:
            return
        name = f"{self._component.name}.__iter__"
        start(Call("iterate", self._component, "__iter__", name, OPENING, call_line()), held=True).wait()
        self._ended = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """The next step: waits until every worker has made it, or until the deadline of `__next__`."""
        raise_not_retrieved()
        if self._ended:
            raise StopIteration
        call = self._step = self._step or self._ask()
        try:
            call.wait()
        except CallTimeoutError:
            raise
        except TwinkleError as error:
            self._step = None
            raise (no_end(error) if isinstance(error, SIGNALS) else error) from error.__cause__
        self._step = None
        if not any(call.ended()):
            return Lazy(call, self._itself)
        self._ended = True
        check_all_ended(call)
        raise StopIteration

    def _ask(self) -> PendingCall:
        name = f"{self._component.name}.__next__"
        return start(Call("next", self._component, "__next__", name, self._spec, call_line()), prefetched=True)
