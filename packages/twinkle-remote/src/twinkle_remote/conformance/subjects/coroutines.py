"""Subjects of the checks of async methods and generators."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING

from twinkle_remote.component.decorators import remote_class, remote_function
from twinkle_remote.context import current_worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

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
        """Identity."""
        await asyncio.sleep(0)
        return value

    @remote_function(dispatch="slice_dp", collect="flatten")
    async def rows(self, rows: list[int]) -> list[int]:
        """Identity, by data rank."""
        await asyncio.sleep(0)
        return rows

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
        """Let `opened` go on."""
        self._open.set()

    @remote_function(dispatch="all", timeout=1.0)
    async def late(self) -> None:
        """Wait for longer than the deadline."""
        try:
            await waits_deep(600.0)
        finally:
            self._log.append("cleaned up")

    @remote_function(dispatch="all")
    async def fails(self) -> None:
        """Raise after an await."""
        await asyncio.sleep(0)
        raise KeyError("asked for too much")

    @remote_function(dispatch="all")
    async def where(self, mark: int) -> tuple[int, int | None, bool]:
        """The mark of this call after awaits, the rank, and whether this is another thread than the main one."""
        _mark.set(mark)
        for _ in range(5):
            await asyncio.sleep(0.001)
        return _mark.get(), current_worker().rank, threading.current_thread() is not threading.main_thread()

    @remote_function(dispatch="all")
    def log(self) -> list[str]:
        """The events so far."""
        return list(self._log)

    @remote_function(dispatch="all")
    def most(self) -> int:
        """The number of calls of `opened` that were inside at once."""
        return self._most


@remote_class()
class Maker:
    """Generators."""

    def __init__(self) -> None:
        self._made = 0
        self._closed = 0

    @remote_function(dispatch="slice_dp", collect="first")
    def each(self, rows: list[int]) -> Iterator[int]:
        """The rows one by one."""
        yield from rows

    @remote_function(dispatch="slice_dp", collect="first")
    async def each_later(self, rows: list[int]) -> AsyncIterator[int]:
        """The rows one by one, with awaits."""
        for row in rows:
            await asyncio.sleep(0)
            yield row

    @remote_function(dispatch="all", execute="first", collect="first")
    def first_then_waits(self, gate: str) -> Iterator[str]:
        """An item, and another one when a file exists."""
        yield "first"
        while not os.path.exists(gate):
            time.sleep(0.01)
        yield "second"

    @remote_function(dispatch="all", collect="first")
    def endless(self) -> Iterator[int]:
        """Items without end."""
        try:
            while True:
                self._made += 1
                yield self._made
        finally:
            self._closed += 1

    @remote_function(dispatch="all", collect="first")
    async def endless_later(self) -> AsyncIterator[int]:
        """Items without end, and the second one never comes."""
        try:
            yield 1
            await asyncio.sleep(600.0)
        finally:
            self._closed += 1

    @remote_function(dispatch="slice_dp", collect="first")
    def breaks(self, rows: list[int]) -> Iterator[int]:
        """The rows, and then an error."""
        yield from rows
        raise ValueError("out of rows")

    @remote_function(dispatch="all", collect="first", timeout=1.0)
    async def stops(self) -> AsyncIterator[int]:
        """One item, and nothing for long."""
        try:
            yield 1
            await waits_deep(600.0)
        finally:
            self._closed += 1

    @remote_function(dispatch="all", execute="first")
    def returns_generator(self) -> object:
        """A plain function whose result is a generator."""
        return (row for row in (1, 2))

    @remote_function(dispatch="all")
    def counts(self) -> tuple[int, int]:
        """The numbers of items that were made and of generators that were closed."""
        return self._made, self._closed


@remote_class()
class Pieces:
    """A method whose ranks end when the caller says."""

    @remote_function(dispatch="slice_dp", collect="flatten")
    def after(self, rows: list[int], gate: str) -> list[int]:
        """The rows, when the file of this data rank exists; 13 among them is an error."""
        mesh = current_worker().mesh
        index = 0 if mesh is None else mesh.data_rank()
        until = time.monotonic() + 60.0
        while not os.path.exists(f"{gate}-{index}") and time.monotonic() < until:
            time.sleep(0.01)
        if 13 in rows:
            raise KeyError("thirteen")
        return rows
