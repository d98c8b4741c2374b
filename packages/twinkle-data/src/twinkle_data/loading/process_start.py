"""How torch's loader processes are started: recorded, in a thread, and without torch's SIGCHLD handler."""

from __future__ import annotations

import copy
import gc
import importlib
import multiprocessing
import os
import threading
from contextlib import contextmanager
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.process import BaseProcess

_one_at_a_time: dict[int, threading.Lock] = {}  # by process: a forked one does not wait for its parent's thread


def recording_context(given: str | BaseContext | None) -> tuple[BaseContext, list[BaseProcess]]:
    """A context of multiprocessing, and the list of the processes that it will make.

    Args:
        given: The context or the name of a start method; None is the platform's default.
    """
    base: Any = given if isinstance(given, BaseContext) else multiprocessing.get_context(given)
    context = copy.copy(base)
    made: list[BaseProcess] = []

    def make(*args: Any, **kwargs: Any) -> BaseProcess:
        process: BaseProcess = base.Process(*args, **kwargs)
        made.append(process)
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
    """Leave the parent's garbage alone for good.

    Args:
        collects: Whether this process collects its own.
    """
    gc.freeze()
    if collects:
        gc.enable()


def in_a_thread(work: Callable[[], Any]) -> Any:
    """The result of a function, or its error, from a thread of its own; one at a time in a process.

    A hook of the library filelock, which torch brings, refuses a fork while another thread forks.
    """
    outcome: list[Any] = []

    def run() -> None:
        try:
            with _one_at_a_time.setdefault(os.getpid(), threading.Lock()):
                outcome.append((work(), None))
        except BaseException as error:  # handed to the waiting thread
            outcome.append((None, error))

    thread = threading.Thread(target=run, name="twinkle-loader-start")
    thread.start()
    while thread.is_alive():
        thread.join(1.0)  # Ctrl-C is seen between two waits
    result, error = outcome[0]
    if error is not None:
        raise error
    return result
