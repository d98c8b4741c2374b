"""Constructors of one process's ranks take turns, each with the generators that a process of its own would have."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from twinkle_remote.worker.generators import Generators

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twinkle_remote.backends.draw_warnings import DrawWarnings

_IDLE_SECONDS = 3.0
_LOOK_SECONDS = 0.1
_WORK_SECONDS = 0.001  # of processor time between two looks at a thread that is at work


@dataclass(eq=False)
class _Turn:
    """One thread's turn.

    Attributes:
        own: Its generators.
        name: Class.method.
        thread: Identity of the thread.
        lost: The generators when another thread took the turn over; None while it has it.
    """

    own: Generators
    name: str
    thread: int = field(default_factory=threading.get_ident)
    lost: Generators | None = None


class Turns:
    """Who has the process's generators to itself.

    One thread at a time has. Where it stands still, as a constructor that waits for those of the other ranks does, the
    next one takes the turn over, and a warning tells of it where anything was drawn meanwhile.

    Args:
        warnings: Who tells of draws that are mixed.
        patience: Seconds after which the turn of a thread that is at work is taken over as well.

    Attributes:
        count: Turns that were taken so far.
    """

    def __init__(self, warnings: DrawWarnings, patience: float) -> None:
        self._warnings = warnings
        self.count = 0
        self._patience = patience
        self._changed = threading.Condition()
        self._turn: _Turn | None = None
        self._outside = Generators(0)
        self._mine = threading.local()
        self._waiting_for_others: set[str] = set()

    @contextmanager
    def taken(self, own: Generators, name: str) -> Iterator[None]:
        """Run a block with generators of its own, which go on from there the next time.

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
        """Let others have their turn while this thread waits for a call; nothing for a thread without one."""
        turn: _Turn | None = getattr(self._mine, "turn", None)
        if turn is None:
            yield
            return
        self._give(turn)
        try:
            yield
        finally:
            self._take(_Turn(turn.own, turn.name))

    def is_taken(self) -> bool:
        """Whether a thread has the generators to itself now."""
        return self._turn is not None

    def _take(self, turn: _Turn) -> None:
        until = time.monotonic() + self._patience
        with self._changed:
            work = _Work()
            while (other := self._turn) is not None:
                limit = _LOOK_SECONDS if other.name in self._waiting_for_others else _IDLE_SECONDS
                if work.idle_seconds(other.thread) > limit or time.monotonic() > until:
                    self._take_over(other)
                    break
                self._changed.wait(_LOOK_SECONDS)
            self._outside.read()
            turn.own.install()
            self._turn = self._mine.turn = turn
            self.count += 1

    def _take_over(self, turn: _Turn) -> None:
        self._waiting_for_others.add(turn.name)
        turn.own.read()
        self._outside.install()
        turn.lost = Generators(0).read()

    def _give(self, turn: _Turn) -> None:
        self._mine.turn = None
        with self._changed:
            if turn.lost is not None:
                self._warnings.tell(turn.name, turn.lost.moved())
                return
            turn.own.read()
            self._outside.install()
            self._turn = None
            self._changed.notify_all()


class _Work:
    """Since when a thread has used no processor."""

    def __init__(self) -> None:
        self._thread = 0
        self._used = 0.0
        self._since = 0.0

    def idle_seconds(self, thread: int) -> float:
        """How long a thread has done nothing; 0 where the system does not tell."""
        clock = getattr(time, "pthread_getcpuclockid", None)
        used = time.monotonic() if clock is None else time.clock_gettime(clock(thread))
        now = time.monotonic()
        if thread != self._thread or used - self._used > _WORK_SECONDS:
            self._thread, self._used, self._since = thread, used, now
        return now - self._since
