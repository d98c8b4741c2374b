"""Slow chunks: those that take so long that they are reported."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from twinkle_remote.sessions.in_flight.patience import Durations

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_remote.streams.schedule.decisions import StageCall


class SlowChunks:
    """Names each chunk once that takes longer than the patience, or ten times as long as its like did.

    Args:
        patience: Seconds; None names nothing.
        one_by_one: For each stage, the workers that run its chunks one after the other, by a number; None where chunks
            run at the same time. Only the first chunk of a data rank is at work there.
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
        self._since: dict[int, tuple[float, StageCall]] = {}
        self._reported: set[int] = set()
        self._took = [Durations() for _ in one_by_one]

    def begin(self, work: StageCall) -> None:
        """A call is sent."""
        self._since[work.number] = (self._clock(), work)

    def end(self, work: StageCall) -> None:
        """It is over, or abandoned."""
        found = self._since.pop(work.number, None)
        if found is None:
            return
        now = self._clock()
        self._reported.discard(work.number)
        self._took[work.stage].add(now - found[0])
        place = self._place(work)
        if place is not None:  # the next one begins now
            behind = [chunk for chunk, (_, other) in self._since.items() if self._place(other) == place]
            self._since.update({chunk: (now, self._since[chunk][1]) for chunk in behind})

    def overdue(self) -> Sequence[tuple[StageCall, float]]:
        """The chunks to be named now, each once, with the seconds that they have taken."""
        if self._patience is None:
            return ()
        now, found, seen = self._clock(), [], set()
        for chunk, (since, work) in self._since.items():
            place = self._place(work)
            if place is not None and place in seen:
                continue
            seen.add(place)
            if chunk not in self._reported and now - since > self._took[work.stage].limit(self._patience):
                self._reported.add(chunk)
                found.append((work, now - since))
        return found

    def _place(self, work: StageCall) -> tuple[int, int] | None:
        pool = self._one_by_one[work.stage]
        return None if pool is None else (pool, work.rank)
