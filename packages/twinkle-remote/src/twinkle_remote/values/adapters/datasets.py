"""Rows of Hugging Face datasets and of their columns, whose features and format stay."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from twinkle_remote.protocol.tables import Rows

_datasets: Any = importlib.import_module("datasets")


class DatasetSplitter:
    """Splitter for `datasets.Dataset`, and for a column of one, `dataset["name"]`."""

    def length(self, value: Any) -> int:
        """Number of rows."""
        return len(value)

    def slice(self, value: Any, start: int, stop: int) -> Any:
        """A dataset of rows [start, stop) over the same table, or the column of such a dataset."""
        if not isinstance(value, _datasets.Dataset):
            return type(value)(self.slice(_source(value), start, stop), value.column_name)
        return value.select(range(start, stop) if start < stop else range(0))

    def take(self, value: Any, rows: Rows) -> Any:
        """A dataset of these rows over the same table, or the column of such a dataset."""
        if not isinstance(value, _datasets.Dataset):
            return type(value)(self.take(_source(value), rows), value.column_name)
        return value.select(list(rows))

    def columns(self, value: Any) -> Sequence[Hashable] | None:
        """The columns of a dataset."""
        return value.column_names if isinstance(value, _datasets.Dataset) else None

    def sizes(self, value: Any) -> Mapping[Hashable, int]:
        """The bytes of each column in memory, by the share of its rows that the dataset has; of one on disk none."""
        if not isinstance(value, _datasets.Dataset) or value.cache_files:
            return {}
        table = value.data
        share = len(value) / max(table.num_rows, 1)
        return {name: int(table.column(name).nbytes * share) for name in value.column_names}

    def select(self, value: Any, names: Sequence[Hashable]) -> Any:
        """The dataset with these columns."""
        return value.select_columns(list(names))

    def join(self, values: Sequence[Any]) -> Any:
        """The columns of all datasets, row next to row."""
        kept = [
            value.remove_columns(
                [name for name in value.column_names if any(name in one.column_names for one in later)]
            )
            for value, later in ((value, values[place + 1 :]) for place, value in enumerate(values))
        ]
        return _datasets.concatenate_datasets([value for value in kept if value.column_names], axis=1)

    def concat(self, values: Sequence[Any]) -> Any:
        """One dataset over all tables; datasets refuses other features.

        Raises:
            ValueError: The columns differ in name, or the datasets in format.
        """
        first = values[0]
        if not isinstance(first, _datasets.Dataset):
            names = [value.column_name for value in values]
            if len(set(names)) > 1:
                raise ValueError(f"their columns are {names}")
            return type(first)(self.concat([_source(value) for value in values]), names[0])
        formats = [{**value.format, "columns": sorted(value.format["columns"])} for value in values]
        if any(other != formats[0] for other in formats):
            raise ValueError(f"their formats are {formats}")
        return _datasets.concatenate_datasets(list(values))


def _source(column: Any) -> Any:
    """The dataset of a column, or the column that it is a part of, without the other columns."""
    source = column.source
    return source.select_columns([column.column_name]) if isinstance(source, _datasets.Dataset) else source


SPLITTER = DatasetSplitter()
