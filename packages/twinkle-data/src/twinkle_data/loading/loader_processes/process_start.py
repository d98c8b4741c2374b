"""The start of torch's loader processes: recorded, by the thread that asks, and without torch's SIGCHLD handler."""

from __future__ import annotations

import copy
import gc
import importlib
import multiprocessing
import os
import queue
import threading
from contextlib import contextmanager
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.process import BaseProcess

_one_at_a_time: dict[int, threading.Lock] = {}  # by process: a forked one does not wait for its parent's thread


def check_context(given: object) -> None:
    """Check that a value names a start method of this platform, or is a context.

    Raises:
        TypeError: It is neither a text nor a context.
        ValueError: This platform has no such start method.
    """
    known = multiprocessing.get_all_start_methods()
    names = ", ".join(map(repr, known))
    if given is not None and not isinstance(given, (str, BaseContext)):
        raise TypeError(
            f"multiprocessing_context={given!r} is a {type(given).__name__}; use {names}, or a context of "
            "multiprocessing"
        )
    if isinstance(given, str) and given not in known:
        raise ValueError(f"multiprocessing_context={given!r} is no start method of this platform; use {names}")


def recording_context(
    given: str | BaseContext | None, starter: Starter | None = None
) -> tuple[BaseContext, list[BaseProcess]]:
    """A context of multiprocessing, and the list of the processes that it will make.

    Args:
        given: The context or the name of a start method; None is the platform's default.
        starter: Starts the processes; None starts each where it is asked to start.
    """
    base: Any = given if isinstance(given, BaseContext) else multiprocessing.get_context(given)
    context = copy.copy(base)
    made: list[BaseProcess] = []

    def make(*args: Any, **kwargs: Any) -> BaseProcess:
        process: BaseProcess = base.Process(*args, **kwargs)
        made.append(process)
        if starter is not None:
            starter.takes_over(process)
        return process

    context.Process = make
    return context, made


def unlisted(running: Any) -> Any:
    """Remove the processes from the list of torch's SIGCHLD handler, which raises in the main thread when one dies.

    A program that has used a loader of torch's has that handler. This module checks for dead processes itself, while
    it waits for a batch. torch has no public way; without these members the list stays as torch makes it.
    """
    remove = getattr(importlib.import_module("torch._C"), "_remove_worker_pids", None)
    if remove is not None and getattr(running, "_worker_pids_set", False):
        remove(id(running))
        running._worker_pids_set = False
    return running


@contextmanager
def garbage_kept() -> Iterator[None]:
    """Without the collector of cycles, in processes that are forked meanwhile too: they begin with `garbage_left`.

    In a fork the parent's garbage must not be collected. A process group among it, as of a model that is no longer
    used, waits for threads that a fork has not, and ends the process.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def garbage_left(*, collects: bool) -> None:
    """Never collect the parent's garbage.

    Args:
        collects: Whether this process collects its own.
    """
    gc.freeze()
    if collects:
        gc.enable()


class Starter:
    """Starts processes for another thread, which waits for it."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[BaseProcess | None] = queue.SimpleQueue()
        self._started: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def takes_over(self, process: BaseProcess) -> None:
        """Let `process.start()`, called in the other thread, start it in this object's."""

        def start() -> None:
            # A process that is spawned is pickled, with what it has.
            del process.start
            self._asked.put(process)
            error = self._started.get()
            if error is not None:
                raise error

        process.start = start  # type: ignore[method-assign]  # of this one process

    def end(self) -> None:
        """Let `serve` return; the other thread calls it."""
        self._asked.put(None)

    def serve(self) -> None:
        """Start the processes that the other thread asks for, until its end."""
        while True:
            try:
                process = self._asked.get(timeout=1.0)  # Ctrl-C is seen between two waits
            except queue.Empty:
                continue
            if process is None:
                return
            error: BaseException | None = None
            try:
                process.start()
            except BaseException as raised:  # the thread that asked raises it
                error = raised
            self._started.put(error)


def in_a_thread(work: Callable[[], Any], starter: Starter | None = None) -> Any:
    """The result of a function, or its error, from a thread of its own; one at a time in a process.

    Started in the main thread, torch would install a SIGCHLD handler, which raises anywhere in it. But a process that
    is forked from another thread loses the state of the main one, and what that holds (a process group, say, that
    DTensor's caches keep) is destroyed in the fork, where it waits for threads that are not there. So the processes
    themselves are started in the thread that calls this. A hook of the library filelock, which torch brings, refuses a
    fork while another thread forks.

    Args:
        work: The function.
        starter: Starts the processes that it asks for, in the calling thread.
    """
    outcome: list[Any] = []
    starter = starter or Starter()

    def run() -> None:
        try:
            with _one_at_a_time.setdefault(os.getpid(), threading.Lock()):
                outcome.append((work(), None))
        except BaseException as error:  # handed to the waiting thread
            outcome.append((None, error))
        finally:
            starter.end()

    thread = threading.Thread(target=run, name="twinkle-loader-start")
    thread.start()
    starter.serve()
    thread.join()
    result, error = outcome[0]
    if error is not None:
        raise error
    return result
