"""Finds from which libraries threads draw after another thread took their turn over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinkle_remote.backends.thread_clock import ThreadClock
from twinkle_remote.random_state import LIBRARIES, RandomState

if TYPE_CHECKING:
    from collections.abc import Sequence


class LostTurn:
    """A thread that runs on without its turn.

    Args:
        name: Class.method.
        thread: Identity of the thread.

    Attributes:
        name: Class.method.
        drew: Libraries whose generators moved while it worked.
    """

    def __init__(self, name: str, thread: int) -> None:
        self.name = name
        self.drew: set[str] = set()
        self._clock = ThreadClock(thread)
        self._worked = self._clock.read()

    def worked(self) -> bool:
        """Whether the thread has worked since the last call."""
        before, self._worked = self._worked, self._clock.read()
        return self._worked > before


class LostTurns:
    """All lost turns of a process; they share its generators with the thread whose turn it is.

    A period is the time between two exchanges of the generators. Who of several threads drew in a period cannot be
    known, so what moved in it counts for every lost turn whose thread worked in it, and for none that stood still.
    """

    def __init__(self) -> None:
        self._running: list[LostTurn] = []
        self._ended: list[LostTurn] = []
        self._begin = RandomState()

    def add(self, turn: LostTurn) -> None:
        """Watch a turn from now on; a period has to begin right after this."""
        self._running.append(turn)

    def period_begins(self, installed: RandomState) -> None:
        """Remember the state that a period begins with."""
        self._begin = installed.copy()

    def period_ends(self, state: RandomState) -> None:
        """Count what moved in a period that ends in a state."""
        if not self._running:
            return
        moved = self._begin.moved(state)
        for turn in self._running:
            if turn.worked():
                turn.drew.update(moved)

    def end(self, turn: LostTurn) -> list[tuple[str, Sequence[str]]]:
        """End a turn; it has to be called in the turn's thread.

        Returns:
            The methods and the libraries that were drawn from, once no thread is left that may add some.
        """
        now = RandomState().read()
        self.period_ends(now)
        self.period_begins(now)
        self._running.remove(turn)
        self._ended.append(turn)
        if self._running:
            return []
        drew: dict[str, set[str]] = {}
        for ended in self._ended:
            drew.setdefault(ended.name, set()).update(ended.drew)
        self._ended.clear()
        return [(name, sorted(libraries, key=LIBRARIES.index)) for name, libraries in drew.items()]
