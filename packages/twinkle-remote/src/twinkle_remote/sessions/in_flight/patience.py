"""Patience: what takes long is named once, with what it waits for."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LIKE = 10  # times as long as its like took
_LEAST = 8  # durations, before others are measured by them
_KEPT = 64
_FLOOR = 1 / 6  # of the patience: what takes less is never named


class Durations:
    """The durations of the latest ones of a kind, and the limit from which on one more takes long."""

    def __init__(self) -> None:
        self._took = deque[float](maxlen=_KEPT)

    def add(self, seconds: float) -> None:
        """One more has ended."""
        self._took.append(seconds)

    def limit(self, patience: float) -> float:
        """Seconds: the patience, or ten times as long as the longest took and a sixth of the patience."""
        took = self._took
        return patience if len(took) < _LEAST else min(patience, max(_FLOOR * patience, _LIKE * max(took)))


class Watch:
    """Names a block of one kind that takes long, once each time.

    Args:
        patience: Seconds; None names nothing.
        report: Given the seconds that it has taken, names it; called in a thread of its own.

    Raises:
        ValueError: The patience is no number of seconds above 0.
    """

    def __init__(self, patience: float | None, report: Callable[[float], None]) -> None:
        check_patience(patience)
        self._patience = patience
        self._report = report
        self._durations = Durations()

    @contextmanager
    def over(self) -> Iterator[None]:
        """Watch a block."""
        if self._patience is None:
            yield
            return
        began = time.monotonic()
        timer = threading.Timer(self._durations.limit(self._patience), lambda: self._report(time.monotonic() - began))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            self._durations.add(time.monotonic() - began)


def check_patience(patience: object) -> None:
    """Refuse what is no number of seconds above 0, and not None.

    Raises:
        ValueError: It is none.
    """
    if patience is None or (isinstance(patience, int | float) and not isinstance(patience, bool) and patience > 0):
        return
    raise ValueError(f"patience={patience!r} is no number of seconds above 0; None names nothing")
