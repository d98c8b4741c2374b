"""Rows of pandas frames, series and indexes; the index goes along."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_pandas: Any = importlib.import_module("pandas")


class PandasSplitter:
    """Splitter for `pandas.DataFrame`, `pandas.Series` and `pandas.Index`."""

    def length(self, value: Any) -> int:
        """Number of rows."""
        return len(value)

    def slice(self, value: Any, start: int, stop: int) -> Any:
        """Rows [start, stop), with their index."""
        return value[start:stop] if isinstance(value, _pandas.Index) else value.iloc[start:stop]

    def concat(self, values: Sequence[Any]) -> Any:
        """One new frame, series or index.

        Raises:
            ValueError: The columns differ: pandas would fill the gaps with NaN.
        """
        first = values[0]
        if isinstance(first, _pandas.Index):
            return first.append(list(values[1:]))
        if isinstance(first, _pandas.DataFrame) and any(not value.columns.equals(first.columns) for value in values):
            raise ValueError(f"their columns are {[list(value.columns) for value in values]}")
        return _pandas.concat(list(values))


SPLITTER = PandasSplitter()
