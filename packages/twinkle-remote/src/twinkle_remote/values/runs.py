"""Rows by their numbers, where a type only cuts ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twinkle_remote.protocol.tables import Rows


def runs_of(rows: Rows) -> Iterator[range]:
    """Ranges of numbers that follow each other, in order."""
    if isinstance(rows, range) and rows.step == 1:
        if rows:
            yield rows
        return
    start = stop = None
    for row in rows:
        if row != stop:
            if start is not None and stop is not None:
                yield range(start, stop)
            start = row
        stop = row + 1
    if start is not None and stop is not None:
        yield range(start, stop)


def by_runs(splitter: Any, value: Any, rows: Rows) -> Any:
    """Rows of a value, of which a splitter cuts each run of numbers.

    Args:
        splitter: That of the value's type.
        value: It has rows.
        rows: Their numbers.
    """
    parts = [splitter.slice(value, run.start, run.stop) for run in runs_of(rows)]
    if not parts:
        return splitter.slice(value, 0, 0)
    return parts[0] if len(parts) == 1 else splitter.concat(parts)
