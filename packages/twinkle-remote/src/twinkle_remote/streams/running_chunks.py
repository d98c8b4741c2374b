"""The chunks that are at work on workers, and the replies that show their end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.call.pending.pending_call import PendingCall
    from twinkle_remote.protocol.backend import Reply
    from twinkle_remote.streams.schedule.decisions import Assignment


@dataclass(slots=True)
class RunningChunk:
    """A chunk at work."""

    work: Assignment
    call: PendingCall


class RunningChunks:
    """The chunks at work, by their number."""

    def __init__(self) -> None:
        self._chunks: dict[int, RunningChunk] = {}
        self._replies: dict[Reply, int] = {}

    def begin(self, work: Assignment, call: PendingCall) -> Sequence[Reply]:
        """A call was made for a chunk; its replies."""
        self._chunks[work.chunk] = RunningChunk(work, call)
        replies = call.replies()
        for reply in replies:
            self._replies[reply] = work.chunk
        return replies

    def call_of(self, chunk: int) -> PendingCall | None:
        """The call of a chunk at work; None without one."""
        run = self._chunks.get(chunk)
        return None if run is None else run.call

    def take_over(self, done: Sequence[Reply]) -> Sequence[RunningChunk]:
        """Take those that are over with these replies: all of a chunk's replies have come, or one is a failure."""
        return [chunk for reply in done if (chunk := self._take_if_over(reply)) is not None]

    def _take_if_over(self, reply: Reply) -> RunningChunk | None:
        number = self._replies.get(reply)
        if number is None:
            return None
        call = self._chunks[number].call
        return self._take(number) if call.done() or call.failed() else None

    def take_late(self) -> Sequence[RunningChunk]:
        """Take those that are past their deadline."""
        late = [number for number, chunk in self._chunks.items() if chunk.call.spec.timeout and chunk.call.late()]
        return [self._take(number) for number in late]

    def _take(self, number: int) -> RunningChunk:
        chunk = self._chunks.pop(number)
        for reply in chunk.call.replies():
            self._replies.pop(reply, None)
        return chunk

    def replies(self) -> Sequence[Reply]:
        """The replies of all chunks at work."""
        return tuple(self._replies)

    def close(self) -> None:
        """Cancel async calls, and forget all chunks."""
        for chunk in self._chunks.values():
            if chunk.call.spec.on_loop:
                chunk.call.cancel()
        self._chunks.clear()
        self._replies.clear()
