"""A result at the server, as the client names it: it is kept there as long as its name is held here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinkle_remote.backends.thread_reply import ThreadReply

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable


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


class ServedResult(ThreadReply):
    """The result of a call at the server.

    Args:
        name: Its name there.
        sent: Bytes that were sent.
        ask: Asks the server why the call is late, or to cancel it: takes the question, the name and seconds.
        dropped: Takes the name when the result is no longer used.

    Attributes:
        name: As given.
        held: What keeps it at the server; an outcome holds this, and not the reply, which holds the outcome.
    """

    def __init__(
        self, name: str, sent: int, ask: Callable[[str, str, float | None], Exception | None], dropped: deque[str]
    ) -> None:
        super().__init__(0)
        self.name = name
        self.held = ResultName(name, dropped)
        self.sent = sent
        self._ask = ask

    def lateness(self, seconds: float | None) -> Exception:
        """The error that the call is not done after this time."""
        error = self._ask("late", self.name, seconds)
        assert error is not None
        return error

    def cancel(self) -> None:
        """Cancel the call on the event loops of its workers."""
        self._ask("cancel", self.name, None)

    def withdraw(self) -> None:
        """Cancel the call also on the workers that have not begun it."""
        self._ask("withdraw", self.name, None)
