"""The answer to a numbered request, for the request itself and for those that are sent again."""

from __future__ import annotations

import asyncio


class PendingAnswer:
    """An answer that is not there yet; used on the event loop, apart from `made`.

    Args:
        digest: Size and checksum of the request's body.

    Attributes:
        digest: As given.
        made: The call was made: the client's thread sets it.
        overdue: The answer goes out as soon as the call was made.
        timer: What looks after it.
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
