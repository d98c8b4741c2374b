"""Whether this process has lazy results, so that values are searched for them."""

from __future__ import annotations

ALIVE: set[int] = set()
"""Ids of the lazy results."""


def any_lazy() -> bool:
    """Whether this process has a lazy result."""
    return bool(ALIVE)
