"""Rows of polars frames and series."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_polars: Any = importlib.import_module("polars")


class PolarsSplitter:
    """Splitter for `polars.DataFrame` and `polars.Series`."""

    def length(self, value: Any) -> int:
        """Number of rows."""
        return len(value)

    def slice(self, value: Any, start: int, stop: int) -> Any:
        """A view of rows [start, stop)."""
        return value.slice(start, stop - start)

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
