"""Which chunks take so long that somebody should be told of them."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_remote.streams.schedule.decisions import Assignment

_LIKE = 10  # times as long as its like took
_LEAST = 8  # chunks of a stage that have ended, before others are measured by them
_KEPT = 64
_FLOOR = 1 / 6  # of the patience: a chunk that takes less is never named


class Witness:
    """Names each chunk once that takes longer than the patience, or ten times as long as its like did.

    Args:
        patience: Seconds; None names nothing.
        one_by_one: For each stage, the workers that run its chunks one after the other, by a number; None where chunks
            run beside each other. Only the first chunk of a data rank is at work there.
        clock: Gives the time in seconds.
    """

    def __init__(
        self,
        patience: float | None,
        one_by_one: Sequence[int | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._patience = patience
        self._one_by_one = one_by_one
        self._clock = clock
        self._since: dict[int, tuple[float, Assignment]] = {}
        self._told: set[int] = set()
        self._took = [deque[float](maxlen=_KEPT) for _ in one_by_one]

    def begin(self, work: Assignment) -> None:
        """A chunk is sent."""
        self._since[work.chunk] = (self._clock(), work)

    def end(self, work: Assignment) -> None:
        """It is over, or abandoned."""
        found = self._since.pop(work.chunk, None)
        if found is None:
            return
        now = self._clock()
        self._told.discard(work.chunk)
        self._took[work.stage].append(now - found[0])
        place = self._place(work)
        if place is not None:  # the next one begins now
            behind = [chunk for chunk, (_, other) in self._since.items() if self._place(other) == place]
            self._since.update({chunk: (now, self._since[chunk][1]) for chunk in behind})

    def overdue(self) -> Sequence[tuple[Assignment, float]]:
        """The chunks to be named now, each once, with the seconds that they have taken."""
        if self._patience is None:
            return ()
        now, found, seen = self._clock(), [], set()
        for chunk, (since, work) in self._since.items():
            place = self._place(work)
            if place is not None and place in seen:
                continue
            seen.add(place)
            if chunk not in self._told and now - since > self._limit(work.stage, self._patience):
                self._told.add(chunk)
                found.append((work, now - since))
        return found

    def _place(self, work: Assignment) -> tuple[int, int] | None:
        pool = self._one_by_one[work.stage]
        return None if pool is None else (pool, work.rank)

    def _limit(self, stage: int, patience: float) -> float:
        took = self._took[stage]
        return patience if len(took) < _LEAST else min(patience, max(_FLOOR * patience, _LIKE * max(took)))
