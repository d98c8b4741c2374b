"""Lets one sync into a component be under way at a time."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

T = TypeVar("T")
_LOOK_SECONDS = 0.01  # between two looks whether the turn is free: few syncs meet


class _FreedByInterrupt:
    __slots__ = ("_turn",)

    def __init__(self, turn: SyncTurn) -> None:
        self._turn = turn

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt):
            self._turn.end_own()


class SyncTurn:
    """The turn of the sync that is under way.

    Ctrl-C at any step leaves no lock taken. That of a `Condition` may stay taken for ever, or be released twice.

    Attributes:
        lock: Held for a moment while what a sync reads is changed.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._owner: int | None = None

    def when_free(self, until: float, act: Callable[[], T]) -> T:
        """Do something at a moment at which no sync is under way.

        Args:
            until: The longest wait, in monotonic seconds.
            act: It must be short.

        Raises:
            TimeoutError: A sync was under way all the time.
        """
        while True:
            with self.lock:
                if self._owner is None:
                    return act()
            if time.monotonic() >= until:
                raise TimeoutError
            time.sleep(_LOOK_SECONDS)

    def take_now(self) -> None:
        """Take the turn; to be called by `when_free`."""
        self._owner = threading.get_ident()

    def end(self) -> None:
        """End the turn, whoever has it."""
        self._owner = None

    def freed_by_interrupt(self) -> _FreedByInterrupt:
        """A block whose end by Ctrl-C ends this thread's turn, at whatever step it was."""
        return _FreedByInterrupt(self)

    def end_own(self) -> None:
        """End the turn if this thread has taken it."""
        if self._owner == threading.get_ident():
            self._owner = None


def wait_until(ready: Callable[[], bool], seconds: float) -> bool:
    """Wait until something is so; whether it came to be within the time.

    Args:
        ready: Looks for it.
        seconds: At or above 0.
    """
    until = time.monotonic() + seconds
    while not ready():
        if time.monotonic() >= until:
            return False
        time.sleep(_LOOK_SECONDS)
    return True
