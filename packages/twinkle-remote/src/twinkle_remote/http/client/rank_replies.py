"""The pending answers of the ranks of one call at the server, each by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twinkle_remote.backends.thread_reply import ThreadReply
from twinkle_remote.http.nodes import failure_of
from twinkle_remote.protocol.failure import Failure
from twinkle_remote.protocol.messages import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_remote.http.client.served_result import ResultName, ServedResult
    from twinkle_remote.http.wire.envelopes import RankNews

_FIGURES = ("rank", "rows", "is_list", "rows_given", "total", "ended", "produced", "fetched", "started", "seconds")


class RankReply(ThreadReply):
    """The pending answer of one rank.

    Args:
        result: The call's result at the server; it is kept there as long as this is.
        rank: The rank.
        decode: Makes the value of a message's bytes.

    Attributes:
        result: As given.
    """

    def __init__(self, result: ServedResult, rank: int, decode: Callable[[bytes], Any]) -> None:
        super().__init__(rank)
        self.result = result
        self._decode = decode

    def take(self, answer: RankNews) -> None:
        """Take the rank's answer."""
        outcome = Outcome(**dict(zip(_FIGURES, answer.figures, strict=True)))
        outcome.payload = ServedPayload(self.result.held, self.rank, answer.value, answer.outlives)
        if answer.failure is not None:
            error = None if answer.error is None else self._decode(answer.error)
            outcome.failure = failure_of(answer.failure, error)
        self.complete(outcome)

    def lose(self, error: Exception) -> None:
        """Fail: the server's session is lost, or the call was refused."""
        failure = Failure("", "", type(error).__name__, str(error), live=error)
        self.complete(Outcome(self.rank, failure=failure))


@dataclass(frozen=True, slots=True, eq=False)
class ServedPayload:
    """What one rank made, or the value of a whole call, at the server.

    Attributes:
        result: Name of the call's result.
        rank: The rank; None for the whole call's value.
        value: The encoded value, if it came with the answer.
        scalar: A list of the value, if that came with the answer as it is.
        outlives: It can be read when its worker has ended.
    """

    result: ResultName
    rank: int | None
    value: bytes | None = None
    outlives: bool = False
    scalar: list[Any] | None = None


class ServedRanks:
    """The answers of the ranks of one call at the server.

    Args:
        result: The call's result.
        replies: One for each called rank.
        each: Whether every called rank received rows of its own; None if only the outcomes show it.
    """

    def __init__(self, result: ServedResult, replies: Sequence[RankReply], each: bool | None) -> None:
        self.replies = replies
        self.each = each
        self.sent = result.sent
        self._result = result

    def cancel(self) -> None:
        """Cancel the call on the ranks that have not answered."""
        self._result.cancel()

    def withdraw(self) -> None:
        """Cancel the call on the ranks that have not begun it, too."""
        self._result.withdraw()

    def lateness(self, seconds: float | None) -> Exception:
        """The error that the call is not done after this time."""
        return self._result.lateness(seconds)
