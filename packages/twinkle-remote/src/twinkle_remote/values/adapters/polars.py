"""Rows of polars frames and series."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from twinkle_remote.protocol.tables import Rows

_polars: Any = importlib.import_module("polars")


class PolarsSplitter:
    """Splitter for `polars.DataFrame` and `polars.Series`."""

    def length(self, value: Any) -> int:
        """Number of rows."""
        return len(value)

    def slice(self, value: Any, start: int, stop: int) -> Any:
        """A view of rows [start, stop)."""
        return value.slice(start, stop - start)

    def take(self, value: Any, rows: Rows) -> Any:
        """Rows of these numbers."""
        return value[list(rows)]

    def columns(self, value: Any) -> Sequence[Hashable] | None:
        """The columns of a frame."""
        return value.columns if isinstance(value, _polars.DataFrame) else None

    def sizes(self, value: Any) -> Mapping[Hashable, int]:
        """The bytes of each column of a frame."""
        if not isinstance(value, _polars.DataFrame):
            return {}
        return {column.name: int(column.estimated_size()) for column in value.get_columns()}

    def select(self, value: Any, names: Sequence[Hashable]) -> Any:
        """The frame with these columns."""
        return value.select(list(names))

    def join(self, values: Sequence[Any]) -> Any:
        """The columns of all frames, row next to row."""
        fresh = values[0]
        for value in values[1:]:
            fresh = fresh.with_columns(value.get_columns())
        return fresh

    def concat(self, values: Sequence[Any]) -> Any:
        """One frame or series; polars refuses other columns and types.

        Raises:
            ValueError: The names of series differ.
        """
        names = list(dict.fromkeys(value.name for value in values if isinstance(value, _polars.Series)))
        if len(names) > 1:
            raise ValueError(f"their names are {names}")
        return _polars.concat(list(values))


SPLITTER = PolarsSplitter()
