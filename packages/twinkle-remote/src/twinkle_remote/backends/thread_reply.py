"""The pending answer of a thread."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.protocol.messages import Outcome


class ThreadReply:
    """The pending answer of a thread."""

    __slots__ = ("_future", "rank", "sent")

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.sent = 0
        self._future: Future[Outcome] = Future()

    @property
    def outcome(self) -> Outcome | None:
        """The outcome; None until it is there."""
        return self._future.result() if self._future.done() else None

    def done(self) -> bool:
        """Whether the outcome has arrived."""
        return self._future.done()

    def complete(self, outcome: Outcome) -> None:
        """Set the outcome, once; a later one is dropped."""
        with suppress(InvalidStateError):
            self._future.set_result(outcome)


def wait_for_any(replies: Sequence[ThreadReply], timeout: float | None) -> Sequence[ThreadReply]:
    """Wait until at least one reply is done, and return those that are; empty when the time is over."""
    if timeout != 0.0:
        wait([reply._future for reply in replies], timeout, FIRST_COMPLETED)
    return [reply for reply in replies if reply.done()]
