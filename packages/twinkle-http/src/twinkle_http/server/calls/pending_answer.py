"""The answer to a numbered request, for the request itself and for those that are sent again."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class PendingAnswer:
    """An answer that is not there yet; used on the event loop, apart from `made`.

    Args:
        digest: Size and checksum of the request's body.

    Attributes:
        digest: As given.
        made: The call was made: the client's thread sets it.
        overdue: The answer goes out as soon as the call was made.
        timer: What looks after an overdue one.
    """

    __slots__ = ("_data", "_waiting", "digest", "made", "overdue", "timer")

    def __init__(self, digest: tuple[int, int]) -> None:
        self.digest = digest
        self.made = False
        self.overdue = False
        self.timer: asyncio.TimerHandle | None = None
        self._data: bytes | None = None
        self._waiting: list[asyncio.Future[None]] = []

    def set(self, data: bytes) -> None:
        """Answer, once; a later answer is dropped."""
        if self._data is not None:
            return
        self._data = data
        if self.timer is not None:
            self.timer.cancel()
        for one in self._waiting:
            if not one.done():
                one.set_result(None)
        self._waiting.clear()

    def done(self) -> bool:
        """Whether it is there."""
        return self._data is not None

    async def data(self) -> bytes:
        """The answer; several may wait for it, and one that goes away disturbs no other."""
        if self._data is None:
            one = asyncio.get_running_loop().create_future()
            self._waiting.append(one)
            await one
        assert self._data is not None
        return self._data


class AnswerTimer:
    """Reports answers that are not there after some time; one timer serves all, because most answers come earlier.

    Args:
        seconds: The time.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waiting: deque[tuple[float, PendingAnswer, Callable[[], None]]] = deque()  # ascending by time

    def add(self, answer: PendingAnswer, late: Callable[[], None]) -> None:
        """Call `late` if an answer is not there in time."""
        loop = asyncio.get_running_loop()
        self._waiting.append((loop.time() + self._seconds, answer, late))
        if len(self._waiting) == 1:
            loop.call_later(self._seconds, self._look)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            until, answer, late = self._waiting[0]
            if not answer.done() and until > loop.time():
                loop.call_at(until, self._look)
                return
            self._waiting.popleft()
            if not answer.done():
                loop.call_soon(late)  # an error in it holds up no other
