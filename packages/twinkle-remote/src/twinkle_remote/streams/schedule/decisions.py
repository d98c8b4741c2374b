"""What a schedule decides: the work of a data rank, and the rows of a batch."""

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
