"""Ranges of positions in the source: what was delivered before a resume."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def overlaps(spans: Sequence[tuple[int, int]], first: int, stop: int) -> list[tuple[int, int]]:
    """The parts of ascending ranges that lie in [first, stop)."""
    return [(max(a, first), min(b, stop)) for a, b in spans if a < stop and first < b]


def open_to_consumed(position: Mapping[str, Any]) -> list[tuple[int, int]]:
    """The ranges of positions between the source's state and the last row read that were delivered or given up."""
    consumed, start = [], position["row"]
    for first, stop in position["open"]:
        if start < first:
            consumed.append((start, first))
        start = stop
    if start < position["read"]:
        consumed.append((start, position["read"]))
    return consumed
