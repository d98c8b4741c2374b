"""Rows of Hugging Face datasets, whose features and format stay."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_datasets: Any = importlib.import_module("datasets")


class DatasetSplitter:
    """Splitter for `datasets.Dataset`."""

    def length(self, value: Any) -> int:
        """Number of rows."""
        return len(value)

    def slice(self, value: Any, start: int, stop: int) -> Any:
        """A dataset of rows [start, stop) over the same table."""
        return value.select(range(start, stop) if start < stop else range(0))

    def concat(self, values: Sequence[Any]) -> Any:
        """One dataset over all tables; datasets refuses other features."""
        return _datasets.concatenate_datasets(list(values))


SPLITTER = DatasetSplitter()
