"""Ctrl-C at chosen moments."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

_AGAIN_SECONDS = 0.2


def interrupted_at_step(step: int, function: Callable[[], object]) -> bool:
    """Call a function, with `KeyboardInterrupt` at one of the steps at which Ctrl-C may come; whether it came to it.

    Args:
        step: From 1 on; it counts begins of functions and ends of functions in C, as the interpreter looks for signals.
        function: What is interrupted.
    """
    left = step

    def look(_: object, event: str, __: object) -> None:
        nonlocal left
        left -= event in ("call", "c_return")
        if left == 0:
            left = -1
            raise KeyboardInterrupt

    again: list[int] = []  # one that a finalizer dropped comes once more
    handler = signal.signal(signal.SIGINT, lambda number, _: again.append(number))
    before, collects = sys.getprofile(), gc.isenabled()
    gc.disable()  # a finalizer of anything else is no step of the function
    dropped = False
    try:
        sys.setprofile(look)
        function()
        dropped = left < 0
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(before)
        until = time.monotonic() + _AGAIN_SECONDS
        while dropped and not again and time.monotonic() < until:
            time.sleep(0.005)
        signal.signal(signal.SIGINT, handler)
        if collects:
            gc.enable()
    return left < 0


@contextmanager
def interrupts(name: str, seconds: float) -> Iterator[None]:
    """A block in which the main thread gets one `KeyboardInterrupt`, in a function of twinkle-remote of this name.

    Args:
        name: Of the function; until it is at work the interrupt waits.
        seconds: After which it may come.
    """
    over = threading.Event()
    main = threading.get_ident()

    def interrupt(_: int, frame: FrameType | None) -> None:
        while frame is not None and not over.is_set():
            if frame.f_code.co_name == name and "twinkle_remote" in frame.f_code.co_filename:
                over.set()
                raise KeyboardInterrupt
            frame = frame.f_back

    def send() -> None:
        time.sleep(seconds)
        while not over.is_set():
            signal.pthread_kill(main, signal.SIGUSR1)
            time.sleep(0.001)

    before = signal.signal(signal.SIGUSR1, interrupt)
    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    try:
        yield
    finally:
        over.set()
        sender.join()
        signal.signal(signal.SIGUSR1, before)
