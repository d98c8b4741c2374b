"""Ranges of positions in the source: what was delivered before a resume, and what a state keeps open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from twinkle_remote.streams.rows.row_source import RowSource


def overlaps(spans: Sequence[tuple[int, int]], first: int, stop: int) -> list[tuple[int, int]]:
    """The parts of ascending ranges that lie in [first, stop)."""
    return [(max(a, first), min(b, stop)) for a, b in spans if a < stop and first < b]


def outside(spans: Sequence[tuple[int, int]], first: int, stop: int) -> list[tuple[int, int]]:
    """The parts of [first, stop) that lie in none of the ascending ranges."""
    left = []
    for start, end in overlaps(spans, first, stop):
        if first < start:
            left.append((first, start))
        first = end
    return [*left, (first, stop)] if first < stop else left


def merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges in ascending order, those that touch as one; they do not overlap."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((start, stop))
    return found


def open_to_consumed(position: Mapping[str, Any]) -> list[tuple[int, int]]:
    """The ranges of positions between the source's state and the last row read that were delivered or given up."""
    return outside([(first, stop) for first, stop in position["open"]], position["row"], position["read"])


def position_of(
    source: Mapping[str, Any], read: int, open_rows: Iterable[tuple[int, int]], consumed: Sequence[tuple[int, int]]
) -> dict[str, Any]:
    """The position of rows in a state.

    Args:
        source: `RowSource.state` where no row that is open lies before it.
        read: Position after the last row that was read.
        open_rows: Ranges of rows before it that are not delivered.
        consumed: Ranges that were delivered before a resume, ascending: those that were not read again are kept.
    """
    end = max([read, *(stop for _, stop in consumed)])
    left = merged([*open_rows, *outside(consumed, read, end)])
    return {**source, "read": end, "open": [list(span) for span in left]}


def unread_position(source: RowSource, consumed: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """The position of a stream that has read nothing since it was made or given a state."""
    return position_of(source.state(), source.next_row, (), consumed)
