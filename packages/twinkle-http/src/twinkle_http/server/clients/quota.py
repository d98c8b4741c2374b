"""Quotas: limits for what one token may hold at a time, and its current holdings."""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from twinkle_http.server.requests.body import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits for what one token may hold at a time, over all its clients.

    Attributes:
        components: Components.
        calls: Calls in flight.
        results: Results that its clients have not dropped.
        bytes: Bytes of these results, as their workers count them.
    """

    components: int = 1000
    calls: int = 4096
    results: int = 200_000
    bytes: int = 256 << 30


def quota_of(given: Mapping[str, int] | None) -> Quota:
    """The quota of an option.

    Raises:
        ValueError: It names something else, or a number below 1.
    """
    known = [field.name for field in fields(Quota)]
    for name, most in (given or {}).items():
        if name not in known or type(most) is not int or most < 1:
            raise ValueError(f"quota={given!r} is not valid: it has numbers at or above 1 of {', '.join(known)}")
    return Quota(**(given or {}))


class TenantUse:
    """The holdings of one tenant.

    Args:
        quota: What it may hold.
    """

    def __init__(self, quota: Quota) -> None:
        self._quota = quota
        self._held = {"components": 0, "calls": 0, "results": 0, "bytes": 0}
        self._lock = threading.Lock()

    def add(self, what: str, count: int = 1) -> None:
        """Count what is held now; a count below 0 counts what is not held any more."""
        with self._lock:
            self._held[what] += count

    def check(self, *names: str) -> None:
        """Check that there is room for one more.

        Args:
            *names: Fields of the quota.

        Raises:
            RefusedError: There is none; the message states the limit.
        """
        for name in names:
            most = getattr(self._quota, name)
            if self._held[name] >= most:
                raise RefusedError(429, f"this token may have {most} {_WORDS[name]}", "TooMany")


_WORDS = {
    "components": "components: release one",
    "calls": "calls in flight: wait for results",
    "results": "results: drop lazy results that are no longer used",
    "bytes": "bytes of results: drop lazy results that are no longer used",
}
