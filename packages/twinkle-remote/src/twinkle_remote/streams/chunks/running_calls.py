"""The calls that run on workers, and the replies that report their end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from twinkle_remote.call.pending.pending_call import PendingCall
    from twinkle_remote.protocol.backend import Reply
    from twinkle_remote.streams.chunks.chunk_result import ChunkResult
    from twinkle_remote.streams.schedule.decisions import StageCall


@dataclass(slots=True)
class RunningCall:
    """A call at work.

    Attributes:
        work: What it is for.
        call: The call.
        adds: The columns that it adds, and that alone are kept of its result; None for whole rows.
        rows_before: The rows to which it adds them.
    """

    work: StageCall
    call: PendingCall
    adds: tuple[Hashable, ...] | None = None
    rows_before: tuple[tuple[ChunkResult, int], ...] = ()


class RunningCalls:
    """The calls at work, by their number."""

    def __init__(self) -> None:
        self._calls: dict[int, RunningCall] = {}
        self._replies: dict[Reply, int] = {}

    def begin(self, run: RunningCall) -> Sequence[Reply]:
        """A call was made; its replies."""
        self._calls[run.work.number] = run
        replies = run.call.replies()
        for reply in replies:
            self._replies[reply] = run.work.number
        return replies

    def call_of(self, number: int) -> PendingCall | None:
        """The call with a number; None without one."""
        run = self._calls.get(number)
        return None if run is None else run.call

    def take_over(self, done: Sequence[Reply]) -> Sequence[RunningCall]:
        """Take the calls that are over with these replies: all replies of a call have come, or one has a failure."""
        return [run for reply in done if (run := self._take_if_over(reply)) is not None]

    def _take_if_over(self, reply: Reply) -> RunningCall | None:
        number = self._replies.get(reply)
        if number is None:
            return None
        call = self._calls[number].call
        return self._take(number) if call.done() or call.failed() else None

    def take_late(self) -> Sequence[RunningCall]:
        """Take those that are past their deadline."""
        late = [number for number, run in self._calls.items() if run.call.spec.timeout and run.call.late()]
        return [self._take(number) for number in late]

    def _take(self, number: int) -> RunningCall:
        run = self._calls.pop(number)
        for reply in run.call.replies():
            self._replies.pop(reply, None)
        return run

    def replies(self) -> Sequence[Reply]:
        """The replies of all calls at work."""
        return tuple(self._replies)

    def close(self) -> None:
        """Cancel async calls, and forget all."""
        for run in self._calls.values():
            if run.call.spec.on_loop:
                run.call.cancel()
        self._calls.clear()
        self._replies.clear()
