"""The figures of what a server did for one tenant, or for several together."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

BOUNDS = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0, 600.0)  # seconds


@dataclass(slots=True)
class CallFigures:
    """The calls of one name.

    Attributes:
        failed: Number that failed.
        seconds: Time that they took, together.
        counts: Number by time: at most each of `BOUNDS`, and more than the last.
    """

    failed: int = 0
    seconds: float = 0.0
    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))

    def add(self, other: CallFigures) -> None:
        """Add the calls of another."""
        self.failed += other.failed
        self.seconds += other.seconds
        self.counts = [own + more for own, more in zip(self.counts, other.counts, strict=True)]


@dataclass(slots=True)
class Figures:
    """What was done.

    Attributes:
        statuses: Number of requests by status.
        sent: Bytes of answers.
        calls: Figures of calls by Class.method.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    sent: int = 0
    calls: dict[str, CallFigures] = field(default_factory=dict)

    def answered(self, status: int, sent: int) -> None:
        """A request was answered."""
        self.statuses[status] += 1
        self.sent += sent

    def called(self, name: str, seconds: float, *, failed: bool) -> None:
        """A call has ended."""
        figures = self.calls.get(name)
        if figures is None:
            figures = self.calls[name] = CallFigures()
        figures.failed += failed
        figures.seconds += seconds
        figures.counts[bisect_left(BOUNDS, seconds)] += 1


def sum_of(several: Iterable[Figures]) -> Figures:
    """The figures of several together."""
    total = Figures()
    for one in several:
        total.statuses.update(one.statuses)
        total.sent += one.sent
        for name, figures in one.calls.items():
            total.calls.setdefault(name, CallFigures()).add(figures)
    return total
