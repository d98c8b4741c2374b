"""Subjects of the checks of async methods and generators."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar

from twinkle_remote import current_worker, remote_class, remote_function

CONCURRENCY = 4
_mark: ContextVar[int] = ContextVar("mark", default=0)


async def waits_deep(seconds: float) -> None:
    """Wait, below the method that was called."""
    await asyncio.sleep(seconds)


@remote_class(concurrency=CONCURRENCY)
class Asks:
    """Async methods together with ordinary ones."""

    def __init__(self) -> None:
        self._log: list[str] = []
        self._inside = 0
        self._most = 0
        self._open = threading.Event()

    @remote_function(dispatch="all", collect="first")
    async def echo(self, value: object) -> object:
        await asyncio.sleep(0)
        return value

    @remote_function(dispatch="all")
    async def opened(self, index: int) -> int:
        """Wait until `open` was called; returns its argument."""
        self._log.append(f"begin {index}")
        self._inside += 1
        self._most = max(self._most, self._inside)
        try:
            while not self._open.is_set():
                await asyncio.sleep(0.005)
        finally:
            self._inside -= 1
        return index

    @remote_function(dispatch="all")
    def open(self) -> None:
        self._open.set()

    @remote_function(dispatch="all", timeout=1.0)
    async def late(self) -> None:
        try:
            await waits_deep(600.0)
        finally:
            self._log.append("cleaned up")

    @remote_function(dispatch="all")
    async def where(self, mark: int) -> tuple[int, int | None, bool]:
        """The mark of this call after awaits, the rank, and whether this is another thread than the main one."""
        _mark.set(mark)
        for _ in range(5):
            await asyncio.sleep(0.001)
        return _mark.get(), current_worker().rank, threading.current_thread() is not threading.main_thread()

    @remote_function(dispatch="all")
    def log(self) -> list[str]:
        return list(self._log)

    @remote_function(dispatch="all")
    def most(self) -> int:
        """The number of calls of `opened` that were inside at once."""
        return self._most
