"""The pending answers of a call that the server makes: of the whole call, and of each rank by itself."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from twinkle_http.tags import failure_of
from twinkle_http.wire.envelopes import FIGURES
from twinkle_remote.backends.support import ThreadReply
from twinkle_remote.errors import SessionLostError, TwinkleError
from twinkle_remote.protocol import Failure, Outcome, SentCall

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Sequence

    from twinkle_http.wire.envelopes import CallUpdate, RankUpdate
    from twinkle_remote.protocol import Component, Reply

_OF_FAILURE = ("label", "node", "type_name", "message", "method")


class ResultName:
    """The name of a result at the server, which keeps it as long as this object is here.

    Args:
        name: The name.
        dropped: Takes it when it is no longer used.
    """

    __slots__ = ("_dropped", "name")

    def __init__(self, name: str, dropped: deque[str]) -> None:
        self._dropped = dropped
        self.name = name

    def __del__(self) -> None:
        self._dropped.append(self.name)


@dataclass(frozen=True, slots=True, eq=False)
class ServedPayload:
    """The value that one rank made, or that of a whole call, at the server.

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


class ServedReply(ThreadReply):
    """The answer of a call: its value or first failure; `end` follows when all ranks have answered.

    Args:
        name: Name of the result at the server.
        sent: Bytes that were sent.
        read: Reads a payload.
        decode: Makes the value of a message's bytes.
        ask: Asks the server why the call is late, or to cancel it: takes the question, the name and seconds.
        dropped: Takes the name when the result is no longer used.

    Attributes:
        name: As given.
        held: What keeps it at the server; an outcome holds this, and not the reply, which holds the outcome.
        lazies: The lazy results among the arguments of the call.
        each_has_rows: Whether every called rank received rows of its own, by the call's options or as the server
            reports it; None if that is not known yet.
        end: Done when all ranks have answered.
    """

    of_ranks = False
    each: bool | None = False

    def __init__(
        self,
        name: str,
        sent: int,
        read: Callable[[object], tuple[Any, int]],
        decode: Callable[[bytes], Any],
        ask: Callable[[str, str, float | None], Exception | None],
        dropped: deque[str],
    ) -> None:
        super().__init__(0)
        self.name = name
        self.held = ResultName(name, dropped)
        self.sent = sent
        self.submitted = time.time()
        self.lazies: Sequence[Any] = ()
        self.end = ThreadReply(1)
        self._read = read
        self._decode = decode
        self._ask = ask
        self._error: bytes | Exception | None = None
        self._answers: list[RankUpdate] = []  # of ranks, as they came
        self._counted = 0  # of these, whose figures were asked for
        self.each_has_rows: bool | None = None
        self._ranks: WeakValueDictionary[int, RankReply] | None = None

    def take(self, update: CallUpdate) -> None:
        """Take an update of the server."""
        if update.accepted:
            return
        if update.refused is not None:
            self.lose(TwinkleError(update.refused.message))
            return
        if update.unsent is not None:
            self.lose(self._decode(update.unsent))
            self._error = update.unsent
            return
        if update.each is not None:
            self.each_has_rows = update.each
        self._answers += update.ranks
        self._give(update.ranks)
        if not update.done and update.error is None:
            return
        failure = None
        if update.error is not None and update.first is not None:
            self._error = update.error
            texts: dict[str, Any] = dict(zip(_OF_FAILURE, update.first, strict=True))
            failure = Failure(**texts, upstream=update.upstream)
        payload = ServedPayload(self.held, None, update.value, scalar=update.scalar)
        self.complete(Outcome(0, payload=payload, failure=failure, ended=update.ended, rows=update.rows))
        if update.done:
            self.end.complete(Outcome(1, payload=payload, ended=update.ended))
            self._lose_ranks(self.error() if failure is not None else SessionLostError("the server sent no answer"))

    def ranks(self, ranks: Sequence[int], each: bool | None) -> ServedRanks:
        """The answers of some ranks, each by itself: those that came, and those that will come."""
        if self._ranks is None:
            self._ranks = WeakValueDictionary()
        known = self._ranks
        replies = [known.get(rank) or RankReply(self, rank, self._decode) for rank in ranks]
        known.update({reply.rank: reply for reply in replies})
        self._give(tuple(self._answers))  # behind the line above: an answer that comes now is not missed
        if self.end.done():
            self._lose_ranks(self.error() if self._error is not None else SessionLostError("the server sent no answer"))
        return ServedRanks(self, replies, each)

    def by_rank(self, ranks: Sequence[int]) -> ServedRanks:
        """The answers of its ranks, each by itself."""
        return self.ranks(ranks, self.each_has_rows)

    def _give(self, answers: Sequence[RankUpdate]) -> None:
        """Give ranks that are read one by one their answers; one that has its answer keeps it."""
        if self._ranks is None:
            return
        for answer in answers:
            rank = self._ranks.get(answer.figures[0])
            if rank is not None:
                rank.take(answer)

    def _lose_ranks(self, error: Exception) -> None:
        for rank in list(self._ranks.values()) if self._ranks is not None else ():
            if not rank.done():
                rank.lose(error)

    def lose(self, error: Exception) -> None:
        """Fail: the server's session is lost."""
        self._lose_ranks(error)
        if not self.end.done():
            self._error = self._error or error
            failure = Failure("", "", type(error).__name__, str(error))
            self.complete(Outcome(0, failure=failure))
            self.end.complete(Outcome(1))

    @property
    def replies(self) -> Sequence[Reply]:
        """Itself, for the value or the first failure, and the end of all ranks."""
        return self, self.end

    def figures(self, arrived: Sequence[Outcome]) -> Sequence[Outcome]:
        """The metrics of ranks that are known and were not returned before."""
        fresh = self._answers[self._counted :]
        self._counted += len(fresh)
        return [_outcome_of(answer) for answer in fresh]

    def built(self, component: Component) -> Component:
        """A component with the ranks and the mesh that it has at the server."""
        assert self.outcome is not None
        place, _ = self._read(self.outcome.payload)
        return replace(component, ranks=tuple(place["ranks"]), mesh=place["mesh"])

    def error(self) -> Exception:
        """The error of the failed call, a new one for each caller."""
        if isinstance(self._error, bytes):
            error: Exception = self._decode(self._error)
            return error
        assert self._error is not None
        return type(self._error)(str(self._error))

    def lateness(self, seconds: float | None, done: Sequence[int], pending: Sequence[Reply]) -> Exception:
        """The error that the call is not done after this time."""
        error = self._ask("late", self.name, seconds)
        assert error is not None
        return error

    def cancel(self, pending: Sequence[Reply]) -> None:
        """Cancel the call on the event loops of its workers."""
        self._ask("cancel", self.name, None)

    def withdraw(self, pending: Sequence[Reply]) -> None:
        """Cancel the call also on the workers that have not begun it."""
        self._ask("withdraw", self.name, None)


class RankReply(ThreadReply):
    """The pending answer of one rank.

    Args:
        result: The call's result at the server; it is kept there as long as this is.
        rank: The rank.
        decode: Makes the value of a message's bytes.

    Attributes:
        result: As given.
    """

    def __init__(self, result: ServedReply, rank: int, decode: Callable[[bytes], Any]) -> None:
        super().__init__(rank)
        self.result = result
        self._decode = decode

    def take(self, answer: RankUpdate) -> None:
        """Take the rank's answer."""
        outcome = _outcome_of(answer, None if answer.error is None else self._decode(answer.error))
        outcome.payload = ServedPayload(self.result.held, self.rank, answer.value, answer.outlives)
        self.complete(outcome)

    def lose(self, error: Exception) -> None:
        """Fail: the server's session is lost, or the call was refused."""
        failure = Failure("", "", type(error).__name__, str(error), live=error)
        self.complete(Outcome(self.rank, failure=failure))


class ServedRanks(SentCall):
    """The answers of the ranks of one call at the server.

    Args:
        result: The call's result.
        replies: One for each called rank.
        each: Whether every called rank received rows of its own; None if only the outcomes show it.
    """

    def __init__(self, result: ServedReply, replies: Sequence[RankReply], each: bool | None) -> None:
        self.of_ranks = True
        self.replies = replies
        self.each = each
        self.sent, self.submitted, self.lazies = result.sent, result.submitted, result.lazies
        self._result = result

    def cancel(self, pending: Sequence[Reply]) -> None:
        """Cancel the call on the ranks that have not answered."""
        self._result.cancel(pending)

    def withdraw(self, pending: Sequence[Reply]) -> None:
        """Cancel the call on the ranks that have not begun it, too."""
        self._result.withdraw(pending)

    def lateness(self, seconds: float | None, done: Sequence[int], pending: Sequence[Reply]) -> Exception:
        """The error that the call is not done after this time."""
        return self._result.lateness(seconds, done, pending)


def _outcome_of(answer: RankUpdate, error: BaseException | None = None) -> Outcome:
    """The metrics of one rank, without its value."""
    outcome = Outcome(**dict(zip(FIGURES, answer.figures, strict=True)))
    if answer.failure is not None:
        outcome.failure = failure_of(answer.failure, error)
    return outcome
