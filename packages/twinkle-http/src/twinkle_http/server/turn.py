"""Daemon threads of a server: a queue of work that is done in order, and a thread for each piece of work that may wait.

A thread pool would hold the interpreter at its end, and work of one client that waits would hold up the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
_log = logging.getLogger("twinkle.http")


class Turn:
    """A thread that does work in the order in which it was given; it starts with the first.

    Args:
        name: Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._work: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._starting = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def put(self, work: Callable[[], object]) -> None:
        """Do some work after what was given before; what it raises is logged."""
        with self._starting:
            if self._thread.ident is None:
                self._thread.start()
        self._work.put(work)

    def end(self) -> None:
        """End the thread after the work that it was given."""
        self._work.put(None)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception:  # the thread does what comes behind it all the same
                _log.exception("a thread of the server failed")
            del work


def in_own_thread(work: Callable[[], object], name: str) -> None:
    """Do some work in a thread of its own; it must not raise."""
    threading.Thread(target=work, name=name, daemon=True).start()


async def result_of(work: Callable[[], T]) -> T:
    """The result of some work that a thread of its own does; waits for it."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            end = partial(done.set_result, work())
        except Exception as error:  # it is for who waits
            end = partial(done.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(lambda: None if done.done() else end())

    in_own_thread(run, "twinkle-http-work")
    return await done
