"""Watches the first calls of each method for use of the random generators that all threads of a process share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinkle_remote.random_state import RandomState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from twinkle_remote.backends.rng_warnings import RngWarnings
    from twinkle_remote.backends.turns import Turns
    from twinkle_remote.protocol.messages import Outcome

_WATCHED = 3  # first calls of each method on each rank


class RngUse:
    """Compares the generators before and after the first calls of each method.

    Args:
        turns: Turns of the threads; the thread that has the turn is not checked.
        warnings: Issues the warnings.
        at_work: The labels of the threads that run a task now.
    """

    def __init__(self, turns: Turns, warnings: RngWarnings, at_work: Callable[[], Iterable[str]]) -> None:
        self._turns = turns
        self._warnings = warnings
        self._at_work = at_work
        self._seen: dict[tuple[str, str], int] = {}
        self._by_method: dict[str, set[str]] = {}
        self._drew: set[str] = set()

    def watch(self, label: str, method: str, run: Callable[[], Outcome]) -> Outcome:
        """Run a method, and warn if both it and another thread used the generators.

        Args:
            label: Label of the worker that runs it.
            method: Class.method.
            run: Runs it.
        """
        key = (label, method)
        seen = self._seen.get(key, 0)
        if seen >= _WATCHED:
            return run()
        self._seen[key] = seen + 1
        turns = self._turns.count
        before = RandomState().read()
        outcome = run()
        libraries = before.moved()
        if libraries and self._turns.count == turns and not self._turns.is_taken():
            self._moved(label, method, libraries)
        return outcome

    def _moved(self, label: str, method: str, libraries: Sequence[str]) -> None:
        ranks = self._by_method.setdefault(method, set())
        ranks.add(label)
        others = self._drew.intersection(self._at_work()) - {label}
        self._drew.add(label)
        if len(ranks) > 1 or others:
            self._warnings.warn_mixed(method, libraries)
