"""The pending answer of a call that the server makes."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from twinkle_remote.backends.thread_reply import ThreadReply
from twinkle_remote.errors import TwinkleError
from twinkle_remote.http.client.rank_replies import RankReply, ServedPayload, ServedRanks
from twinkle_remote.http.client.served_result import ServedResult
from twinkle_remote.protocol.failure import Failure
from twinkle_remote.protocol.messages import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_remote.http.wire.envelopes import CallNews, RankNews, RanksAnswer

_OF_FAILURE = ("label", "node", "type_name", "message", "method")


class ServedReply(ServedResult):
    """The answer of a call: its value or first failure; `end` follows when all ranks have answered.

    Args:
        name: Name of the result at the server.
        sent: Bytes that were sent.
        decode: Makes the value of a message's bytes.
        ask: As for `ServedResult`.
        ask_ranks: Asks the server for the answers of single ranks: takes the name.
        dropped: Takes the name when the result is no longer used.

    Attributes:
        end: Done when all ranks have answered.
        answers: What each rank took and made, as far as it is known and not yet taken off.
    """

    def __init__(
        self,
        name: str,
        sent: int,
        decode: Callable[[bytes], Any],
        ask: Callable[[str, str, float | None], Exception | None],
        ask_ranks: Callable[[str], RanksAnswer],
        dropped: deque[str],
    ) -> None:
        super().__init__(name, sent, ask, dropped)
        self._ranks: WeakValueDictionary[int, RankReply] | None = None
        self.end = ThreadReply(1)
        self.answers: deque[Outcome] = deque()
        self._decode = decode
        self._ask_ranks = ask_ranks
        self._error: bytes | Exception | None = None

    def take(self, news: CallNews) -> None:
        """Take what the server tells."""
        if news.accepted:
            return
        if news.refused is not None:
            self.lose(TwinkleError(news.refused.message))
            return
        if news.unsent is not None:
            self.lose(self._decode(news.unsent))
            self._error = news.unsent
            return
        self._take_ranks(news.ranks)
        failure = None
        if news.error is not None and news.first is not None:
            self._error = news.error
            texts: dict[str, Any] = dict(zip(_OF_FAILURE, news.first, strict=True))
            failure = Failure(**texts, upstream=news.upstream)
        self.answers.extend([_answer(*one) for one in news.answers])
        payload = ServedPayload(self.held, None, news.value, scalar=news.scalar)
        self.complete(Outcome(0, payload=payload, failure=failure, ended=news.ended, rows=news.rows))
        if news.done:
            self.end.complete(Outcome(1, payload=payload, ended=news.ended))

    def ranks(self, ranks: Sequence[int], each: bool | None) -> ServedRanks:
        """The answers of some ranks, each by itself, from now on."""
        if self._ranks is None:
            self._ranks = WeakValueDictionary()
        known = self._ranks
        replies = [known.get(rank) or RankReply(self, rank, self._decode) for rank in ranks]
        known.update({reply.rank: reply for reply in replies})
        return ServedRanks(self, replies, each)

    def by_rank(self, ranks: Sequence[int]) -> ServedRanks:
        """The answers of its ranks, each by itself; asks the server for them."""
        found = self.ranks(ranks, None)  # before the server is asked: the answers may come by both ways
        described = self._ask_ranks(self.name)
        found.each = described.each
        self._take_ranks(described.ranks)
        return found

    def _take_ranks(self, answers: Sequence[RankNews]) -> None:
        if self._ranks is None:
            return
        for answer in answers:
            rank = self._ranks.get(answer.figures[0])
            if rank is not None:
                rank.take(answer)

    def lose(self, error: Exception) -> None:
        """Fail: the server's session is lost."""
        for rank in list(self._ranks.values()) if self._ranks is not None else ():
            rank.lose(error)
        if not self.end.done():
            self._error = self._error or error
            failure = Failure("", "", type(error).__name__, str(error))
            self.complete(Outcome(0, failure=failure))
            self.end.complete(Outcome(1))

    def error(self) -> Exception:
        """The error of the failed call, made anew for each caller."""
        if isinstance(self._error, bytes):
            error: Exception = self._decode(self._error)
            return error
        assert self._error is not None
        return type(self._error)(str(self._error))


def _answer(rank: int, fetched: int, produced: int, started: float, seconds: float, before: float, why: str) -> Outcome:
    """What one rank took and made."""
    failure = Failure("", "", why, "") if why else None
    outcome = Outcome(rank, failure=failure, produced=produced, fetched=fetched, started=started, seconds=seconds)
    outcome.fetch_seconds = before
    return outcome
