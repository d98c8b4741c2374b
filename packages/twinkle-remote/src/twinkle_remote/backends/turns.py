"""Lets constructors on the ranks of one process run in turns, each with random generators of its own."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from twinkle_remote.backends.lost_turns import LostTurn, LostTurns
from twinkle_remote.backends.thread_clock import ThreadClock
from twinkle_remote.random_state import RandomState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twinkle_remote.backends.rng_warnings import RngWarnings

_IDLE_SECONDS = 3.0
_LOOK_SECONDS = 0.1
_WORK_SECONDS = 0.001  # processor time between two checks of a working thread


@dataclass(eq=False)
class _Turn:
    """One thread's turn.

    Attributes:
        own: Its generators.
        name: Class.method.
        thread: Identity of the thread.
        lost: What it does after another thread took the turn over; None before that.
    """

    own: RandomState
    name: str
    thread: int = field(default_factory=threading.get_ident)
    lost: LostTurn | None = None


class Turns:
    """Gives one thread at a time the process's random generators to itself.

    If that thread is idle (a constructor may wait for the constructors of other ranks), the next thread takes the turn
    over. A warning follows if the generators moved while both worked.

    Args:
        warnings: Issues the warnings about mixed draws.
        patience: Seconds after which the turn of a working thread is taken over too.

    Attributes:
        count: Number of turns so far.
    """

    def __init__(self, warnings: RngWarnings, patience: float) -> None:
        self._warnings = warnings
        self.count = 0
        self._patience = patience
        self._changed = threading.Condition()
        self._turn: _Turn | None = None
        self._outside = RandomState()
        self._lost = LostTurns()
        self._mine = threading.local()
        self._waiting_for_others: set[str] = set()

    @contextmanager
    def taken(self, own: RandomState, name: str) -> Iterator[None]:
        """Run a block with its own generators, which keep their state for the next time.

        Args:
            own: The generators.
            name: Class.method, for messages.
        """
        self._take(_Turn(own, name))
        try:
            yield
        finally:
            self._give(self._mine.turn)

    @contextmanager
    def left(self) -> Iterator[None]:
        """Leave the turn to other threads while this thread waits for a call; no effect without a turn."""
        turn: _Turn | None = getattr(self._mine, "turn", None)
        if turn is None:
            yield
            return
        self._give(turn)
        try:
            yield
        finally:
            self._take(_Turn(turn.own, turn.name))

    def is_mine(self) -> bool:
        """Whether the calling thread has a turn now."""
        return getattr(self._mine, "turn", None) is not None

    def is_taken(self) -> bool:
        """Whether a thread has a turn now."""
        return self._turn is not None

    def _take(self, turn: _Turn) -> None:
        with self._changed:
            other = self._idle_or_none()
            if other is None:
                self._exchange(self._outside, turn.own)
            else:
                self._take_over(other, turn)
            self._turn = self._mine.turn = turn
            self.count += 1

    def _idle_or_none(self) -> _Turn | None:
        """Wait for the end of the other thread's turn; return it if it is to be taken over."""
        until = time.monotonic() + self._patience
        work = _TurnWork()
        while (other := self._turn) is not None:
            limit = _LOOK_SECONDS if other.name in self._waiting_for_others else _IDLE_SECONDS
            if work.idle_seconds(other.thread) > limit or time.monotonic() > until:
                break
            self._changed.wait(_LOOK_SECONDS)
        return other

    def _take_over(self, other: _Turn, turn: _Turn) -> None:
        self._waiting_for_others.add(other.name)
        other.lost = LostTurn(other.name, other.thread)
        self._exchange(other.own, turn.own)
        self._lost.add(other.lost)

    def _exchange(self, current: RandomState, new: RandomState) -> None:
        current.exchange(new)
        self._lost.period_ends(current)
        self._lost.period_begins(new)

    def _give(self, turn: _Turn) -> None:
        self._mine.turn = None
        with self._changed:
            if turn.lost is not None:
                for method, libraries in self._lost.end(turn.lost):
                    self._warnings.warn_mixed(method, libraries)
                return
            self._exchange(turn.own, self._outside)
            self._turn = None
            self._changed.notify_all()


class _TurnWork:
    """Measures how long a thread has used no processor time."""

    def __init__(self) -> None:
        self._thread = 0
        self._used = 0.0
        self._since = 0.0

    def idle_seconds(self, thread: int) -> float:
        """Idle time of the thread; 0 if the system cannot measure it."""
        used = ThreadClock(thread).read()
        now = time.monotonic()
        if thread != self._thread or used - self._used > _WORK_SECONDS:
            self._thread, self._used, self._since = thread, used, now
        return now - self._since
