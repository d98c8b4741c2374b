"""Decisions of a schedule: the work of a data rank, and the rows of a batch."""

from __future__ import annotations

from typing import NamedTuple


class Assignment(NamedTuple):
    """A chunk that a data rank is given.

    Attributes:
        chunk: Index of the chunk.
        stage: The stage.
        rank: The data rank.
        first: Position of its first row in the source.
        rows: Number of its rows.
        version: Version when its first stage began.
    """

    chunk: int
    stage: int
    rank: int
    first: int
    rows: int
    version: int


class StageCall(NamedTuple):
    """A call that a data rank is given: the rows of one chunk or of several.

    Attributes:
        stage: The stage.
        rank: The data rank.
        parts: Its chunks, at least one, in the order of the call's rows.
    """

    stage: int
    rank: int
    parts: tuple[Assignment, ...]

    @property
    def number(self) -> int:
        """Index of the first chunk, which no other call at work has."""
        return self.parts[0].chunk

    @property
    def rows(self) -> int:
        """Number of its rows."""
        return sum(part.rows for part in self.parts)

    @property
    def version(self) -> int:
        """The oldest version when the first stage of a chunk began."""
        return min(part.version for part in self.parts)

    def spans(self) -> list[tuple[int, int]]:
        """First row and number of the rows that follow each other in the source, in the order of the call's rows."""
        spans: list[tuple[int, int]] = []
        for part in self.parts:
            if spans and sum(spans[-1]) == part.first:
                spans[-1] = spans[-1][0], spans[-1][1] + part.rows
            else:
                spans.append((part.first, part.rows))
        return spans


class Part(NamedTuple):
    """Rows of one chunk in a delivered batch.

    Attributes:
        chunk: Index of the chunk.
        first: Position of the first row in the source.
        offset: Index of the first row in the chunk's result.
        rows: Number of rows.
        begun: Version when the first stage began.
        ended: Version when the last stage was done.
        whole: Whether these are the last rows of the chunk, so that its result can be forgotten.
    """

    chunk: int
    first: int
    offset: int
    rows: int
    begun: int
    ended: int
    whole: bool
