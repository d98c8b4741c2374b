"""Rows that were read from the source and are not admitted yet."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Backlog:
    """Ranges of rows in the order of the source.

    Args:
        joined: Whether a chunk may hold rows of several batches of the source.
    """

    def __init__(self, *, joined: bool) -> None:
        self._joined = joined
        self._ranges: deque[tuple[int, int, int]] = deque()
        self._made: dict[int, tuple[int, int]] = {}
        self.rows = 0

    def add(self, first: int, stop: int, batch: int, made: Mapping[int, tuple[int, int]]) -> None:
        """Rows [first, stop) of a batch.

        Args:
            first: First row.
            stop: One past the last row.
            batch: Index of the batch.
            made: Rows that were finished before: the versions of their begin and end.
        """
        start = first
        for row in sorted(row for row in made if first <= row < stop):
            self._append(start, row, batch)
            self._append(row, row + 1, batch)
            self._made[row] = made[row]
            start = row + 1
        self._append(start, stop, batch)

    def take(self, most: int) -> tuple[int, int, int, tuple[int, int] | None]:
        """Up to `most` rows for one chunk: first row, number, batch, and the versions of a row finished before."""
        first, stop, batch = self._ranges.popleft()
        made = self._made.pop(first, None)
        while self._joined and made is None and stop - first < most and self._ranges:
            following = self._ranges[0]
            if following[0] != stop or following[0] in self._made:
                break
            self._ranges.popleft()
            stop = following[1]
        if stop - first > most:
            self._ranges.appendleft((first + most, stop, batch))
            stop = first + most
        self.rows -= stop - first
        return first, stop - first, batch, made

    def ranges(self) -> Sequence[tuple[int, int]]:
        """First row and number of rows of each range."""
        return [(first, stop - first) for first, stop, _ in self._ranges]

    def _append(self, first: int, stop: int, batch: int) -> None:
        if first < stop:
            self._ranges.append((first, stop, batch))
            self.rows += stop - first
