"""The pending answer of a call that the server makes."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from twinkle_remote.backends.thread_reply import ThreadReply
from twinkle_remote.errors import TwinkleError
from twinkle_remote.protocol.failure import Failure
from twinkle_remote.protocol.messages import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_OF_FAILURE = ("label", "node", "type_name", "message", "method")


class ServedReply(ThreadReply):
    """The answer of a call: its value or first failure; `end` follows when all ranks have answered.

    Args:
        name: Name of the result at the server.
        sent: Bytes that were sent.
        decode: Makes the value of a message's bytes.
        ask: Asks the server why the call is late, or to cancel it: takes the question, the name and seconds.
        dropped: Takes the name when the result is no longer used.

    Attributes:
        end: Done when all ranks have answered.
        answers: What each rank took and made, as far as it is known and not yet taken off.
        value: The encoded value, if it came with the answer.
    """

    def __init__(
        self,
        name: str,
        sent: int,
        decode: Callable[[bytes], Any],
        ask: Callable[[str, str, float | None], Exception | None],
        dropped: deque[str],
    ) -> None:
        self._dropped = dropped
        self.name = name
        super().__init__(0)
        self.sent = sent
        self.end = ThreadReply(1)
        self.answers: deque[Outcome] = deque()
        self.value: bytes | None = None
        self._decode = decode
        self._ask = ask
        self._error: bytes | Exception | None = None

    def take(self, news: Mapping[str, Any]) -> None:
        """Take what the server tells."""
        if "answer" in news:
            self._take_answer(self._decode(news["answer"]))
            return
        failure = None
        if "error" in news:
            self._error = news["error"]
            failure = Failure(**dict(zip(_OF_FAILURE, news["first"], strict=True)))
        self.value = news.get("value")
        ended = bool(news.get("ended"))
        self.answers.extend(_answer(*one) for one in news.get("answers", ()))
        self.complete(Outcome(0, payload=self, failure=failure, ended=ended))
        if news["done"]:
            self.end.complete(Outcome(1, payload=self, ended=ended))

    def _take_answer(self, answer: Mapping[str, Any]) -> None:
        """Take the answer to a call whose submission took long."""
        if "refused" in answer:
            self.lose(TwinkleError(answer["refused"]["message"]))
        elif "error" in answer:
            self.lose(self._decode(answer["error"]))
            self._error = answer["error"]
        elif answer["news"] is not None:
            self.take(answer["news"])

    def lose(self, error: Exception) -> None:
        """Fail: the server's session is lost."""
        if not self.end.done():
            self._error = self._error or error
            failure = Failure("", "", type(error).__name__, str(error))
            self.complete(Outcome(0, payload=self, failure=failure))
            self.end.complete(Outcome(1, payload=self))

    def error(self) -> Exception:
        """The error of the failed call, made anew for each caller."""
        if isinstance(self._error, bytes):
            error: Exception = self._decode(self._error)
            return error
        assert self._error is not None
        return type(self._error)(str(self._error))

    def lateness(self, seconds: float | None) -> Exception:
        """The error that the call is not done after this time."""
        error = self._ask("late", self.name, seconds)
        assert error is not None
        return error

    def cancel(self) -> None:
        """Cancel the call on the event loops of its workers."""
        self._ask("cancel", self.name, None)

    def __del__(self) -> None:
        self._dropped.append(self.name)


def _answer(rank: int, fetched: int, produced: int, started: float, seconds: float, before: float, why: str) -> Outcome:
    """What one rank took and made."""
    failure = Failure("", "", why, "") if why else None
    outcome = Outcome(rank, failure=failure, produced=produced, fetched=fetched, started=started, seconds=seconds)
    outcome.fetch_seconds = before
    return outcome
