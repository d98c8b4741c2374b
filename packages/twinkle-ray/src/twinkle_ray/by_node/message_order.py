"""The order of messages: Ray may begin them in another one, because an agent runs many at once."""

from __future__ import annotations

import asyncio

_LATEST_SECONDS = 30.0  # that a message may come after its successor; then it counts as lost


class PassedTurnError(Exception):
    """A message came after its turn had passed."""


class MessageOrder:
    """The turns of the messages of one sender, which are numbered from 0 on."""

    def __init__(self) -> None:
        self._next = 0
        self._skipped: set[int] = set()
        self._waiting: dict[int, asyncio.Future[None]] = {}

    async def wait(self, number: int) -> None:
        """Wait until all earlier messages have been handed out or skipped.

        Raises:
            PassedTurnError: A later message was handed out already.
        """
        if number < self._next:
            raise PassedTurnError(f"message {number} came after message {self._next - 1} was handed out")
        if number == self._next:
            return
        turn = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait_for(turn, _LATEST_SECONDS)
        except TimeoutError:
            self._next = max(self._next, number)
        finally:
            self._waiting.pop(number, None)

    def done(self, number: int) -> None:
        """A message was handed out."""
        self._next = max(self._next, number + 1)
        while self._next in self._skipped:
            self._skipped.discard(self._next)
            self._next += 1
        turn = self._waiting.get(self._next)
        if turn is not None and not turn.done():
            turn.set_result(None)

    def skip(self, number: int) -> None:
        """A message does not come."""
        if number == self._next:
            self.done(number)
        elif number > self._next:
            self._skipped.add(number)
