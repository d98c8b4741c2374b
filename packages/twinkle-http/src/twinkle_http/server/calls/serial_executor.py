"""A thread that does work in the order in which it was given."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
_log = logging.getLogger("twinkle.http")


class SerialExecutor(Executor):
    """One thread; it starts with the first work.

    Args:
        name: Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ended = False
        self._given = self._done = 0

    def put(self, work: Callable[[], object]) -> None:
        """Do some work after what was given before; it must not raise.

        Raises:
            RuntimeError: It was shut down.
        """
        if self._thread is None or self._ended:
            self._begin()
        with self._lock:
            self._given += 1
        self._work.put(work)

    def is_idle(self) -> bool:
        """Whether all work that it was given is done."""
        return self._given == self._done

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """A future of some work; see `Executor.submit`."""
        future: Future[T] = Future()
        self.put(lambda: _run(future, partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the thread after the work that it was given; see `Executor.shutdown`."""
        with self._lock:
            self._ended = True
            thread = self._thread
        self._work.put(None)
        if wait and thread is not None:
            thread.join()

    def _begin(self) -> None:
        with self._lock:
            if self._ended:
                raise RuntimeError(f"{self._name} has ended, and takes no work")
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                self._thread.start()

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception:  # the thread does what comes behind it all the same
                _log.exception("a client's thread failed")
            self._done += 1
            del work


def _run(future: Future[T], work: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except BaseException as error:  # it is for who waits
        future.set_exception(error)
