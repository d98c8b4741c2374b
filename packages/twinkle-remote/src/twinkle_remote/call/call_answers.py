"""What the workers have answered to one call, as it arrives."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from twinkle_remote.sessions.collector import paused_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from twinkle_remote.call.call_runtime import CallRuntime
    from twinkle_remote.protocol.backend import Reply
    from twinkle_remote.protocol.failure import Failure
    from twinkle_remote.protocol.messages import Outcome
    from twinkle_remote.sessions.stats import CallRecord


class CallAnswers:
    """What the called ranks have answered; several threads may read it.

    Args:
        runtime: The runtime of the call.
        replies: One for each called rank, ascending by rank.
        record: Record of the call's times and bytes.

    Attributes:
        on_failures: Called with the outcomes of ranks that failed, as they arrive; None if nobody asks.
    """

    def __init__(self, runtime: CallRuntime, replies: Sequence[Reply], record: CallRecord) -> None:
        self.ranks = tuple(reply.rank for reply in replies)
        self.record = record
        self._runtime = runtime
        self._replies: Mapping[int, Reply] = {reply.rank: reply for reply in replies}
        self._pending = list(replies)
        self._outcomes: dict[int, Outcome] = {}
        self._failures: list[Failure] = []
        self._failed_at = 0.0
        self._lock = threading.Lock()
        self.on_failures: Callable[[Sequence[Outcome]], None] | None = None

    def replies(self) -> Sequence[Reply]:
        """The replies of all ranks."""
        return tuple(self._replies.values())

    def reply(self, rank: int) -> Reply:
        """The reply of one rank, as an input for a consumer's task."""
        return self._replies[rank]

    def outcome(self, rank: int) -> Outcome:
        """The outcome of one rank, after `wait`."""
        return self._outcomes[rank]

    def done(self) -> bool:
        """Whether every worker has answered; never waits."""
        if self._pending and not self._runtime.closed:
            self._reap(0.0)
        return not self._pending

    def failed(self) -> bool:
        """Whether a worker is known to have failed; never waits."""
        return bool(self._failures)

    def failures(self) -> Sequence[Failure]:
        """The known failures, in completion order."""
        return self._failures

    def first_failure(self) -> Failure:
        """The first known failure, or its cause; there is one."""
        return self._told_failures()[0]

    def pending(self) -> Sequence[Reply]:
        """Replies that are not known to be done."""
        return tuple(self._pending)

    def ended(self) -> Sequence[bool]:
        """For each rank, whether its iterator is at its end; after `wait`."""
        return [self._outcomes[rank].ended for rank in self.ranks]

    def _reap(self, timeout: float | None) -> bool:
        """Read the outcomes that have arrived; False if none arrived before the timeout."""
        backend = self._runtime.backend
        waiting = self._pending
        ready = backend.wait(waiting, timeout) if waiting else ()
        if not ready:
            return not self._pending
        with self._lock, paused_for(len(ready)):
            fresh = [backend.outcome(reply) for reply in ready if reply.rank not in self._outcomes]
            if fresh:
                self.record.add(fresh)
                self._take_failures([outcome for outcome in fresh if outcome.failure is not None])
            # After the failures: what Ctrl-C interrupts is read once more.
            self._outcomes.update([(outcome.rank, outcome) for outcome in fresh])
            self._pending = [reply for reply in self._pending if reply.rank not in self._outcomes]
            if not self._pending:
                self._completed()
        return True

    def _take_failures(self, outcomes: Sequence[Outcome]) -> None:
        """Append the failures of outcomes that arrived together, in the order of their ends."""
        ends = sorted(outcomes, key=lambda outcome: (outcome.started + outcome.seconds, outcome.rank))
        self._failures += [outcome.failure for outcome in ends if outcome.failure is not None]
        if ends and not self._failed_at:
            self._failed_at = ends[0].started + ends[0].seconds or time.time()
        if ends and self.on_failures is not None:
            self.on_failures(ends)

    def _told_failures(self) -> Sequence[Failure]:
        """The known failures as a caller is told of them: a known cause stands for what follows from it."""
        return self._failures

    def _completed(self) -> None:
        """Called when the last rank has answered."""
