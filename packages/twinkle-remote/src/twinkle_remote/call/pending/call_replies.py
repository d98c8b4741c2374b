"""The replies of one call, and the outcomes that have arrived."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING

from twinkle_remote.sessions.collector import WIDE_RANKS, collector_paused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from twinkle_remote.protocol.backend import Backend, Reply
    from twinkle_remote.protocol.messages import Outcome
    from twinkle_remote.protocol.served import SentCall
    from twinkle_remote.sessions.telemetry.stats import CallRecord

_NO_PAUSE = nullcontext()


class CallReplies:
    """The replies of one call; several threads may read them.

    Args:
        backend: The backend of the call.
        sent: The call on its way.
        record: Record of the call's times and bytes.

    Attributes:
        ranks: Their ranks, ascending.
        of_rank: By rank.
        pending: Those that are not known to be done.
        outcomes: What has arrived, by rank.
    """

    def __init__(self, backend: Backend, sent: SentCall, record: CallRecord) -> None:
        self.ranks = tuple([reply.rank for reply in sent.replies])
        self.of_rank: Mapping[int, Reply] = {reply.rank: reply for reply in sent.replies}
        self.pending = list(sent.replies)
        self.outcomes: dict[int, Outcome] = {}
        self._backend = backend
        self._figures = None if sent.of_ranks else sent.figures
        self._record = record
        self._lock = threading.Lock()

    def reap(
        self, timeout: float | None, fail: Callable[[Sequence[Outcome]], None], complete: Callable[[], None]
    ) -> bool:
        """Read the outcomes that have arrived; False if none arrived before the timeout.

        Args:
            timeout: Seconds, 0 to poll; None waits without a limit.
            fail: Takes the outcomes of ranks that failed.
            complete: Called when the last rank has answered.
        """
        waiting = self.pending
        ready = self._backend.wait(waiting, timeout) if waiting else ()
        if not ready:
            return not self.pending
        with self._lock, collector_paused() if len(ready) >= WIDE_RANKS else _NO_PAUSE:
            fresh = [self._backend.outcome(reply) for reply in ready if reply.rank not in self.outcomes]
            if fresh:
                if figures := fresh if self._figures is None else self._figures(fresh):
                    self._record.add(figures)
                if failed := [outcome for outcome in fresh if outcome.failure is not None]:
                    fail(failed)
            # After the failures: what Ctrl-C interrupts is read once more.
            self.outcomes.update([(outcome.rank, outcome) for outcome in fresh])
            self.pending = [reply for reply in self.pending if reply.rank not in self.outcomes]
            if not self.pending:
                complete()
        return True
