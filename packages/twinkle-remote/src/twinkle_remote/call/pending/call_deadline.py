"""When a call is late, and how long a wait may take."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class CallDeadline:
    """When a call is late.

    Args:
        at: Its own, in monotonic seconds; None without one.
        others: Those of the calls that make its arguments.

    Attributes:
        at: As given.
        first: The first among all of these; None without one.
    """

    __slots__ = ("at", "first")

    def __init__(self, at: float | None, others: Sequence[CallDeadline]) -> None:
        self.at = at
        self.first: float | None = earliest((at, *[other.first for other in others])) if others else at

    def has_passed(self) -> bool:
        """Whether its own is over."""
        return self.at is not None and time.monotonic() >= self.at

    def may_have_passed(self) -> bool:
        """Whether one of them is over."""
        return self.first is not None and time.monotonic() >= self.first


def earliest(limits: Iterable[float | None]) -> float | None:
    """The first of several times, or the shortest of several durations; None where none limits."""
    return min([limit for limit in limits if limit is not None], default=None)


def seconds_to(limits: Iterable[float | None]) -> float | None:
    """Seconds to the first of several times in monotonic seconds, at or above 0; None without any."""
    until = earliest(limits)
    return None if until is None else max(0.0, until - time.monotonic())
