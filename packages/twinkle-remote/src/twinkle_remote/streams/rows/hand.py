"""The batch that the loop is given: it counts as delivered when the loop has it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_remote.streams.rows.rows_info import RowsInfo


@dataclass(slots=True)
class Hand:
    """A batch between the stream and its loop.

    Attributes:
        spans: Ranges [start, stop) of its rows.
        source: State of the source from which all rows can be read that were not delivered before it.
        made: The batch and its info; None while it is put together.
        given: The loop has it. Until then `next` gives it again, and states count it as not delivered.
    """

    spans: Sequence[tuple[int, int]]
    source: Mapping[str, Any]
    made: tuple[Any, RowsInfo] | None = field(default=None)
    given: bool = False

    def at_version(self, version: int) -> tuple[Any, RowsInfo]:
        """The batch, and its info at a version; that may be newer than the one at which it was made."""
        assert self.made is not None, "a batch without a value is not given"
        value, info = self.made
        return value, replace(info, lag=[version - begun for begun in info.begun])
