"""Hugging Face datasets in memory, pickled without the rows that their indices leave out, where that saves time.

After `select` or `shuffle` a dataset holds the whole table and the indices of its rows, and so does each slice of it.
"""

from __future__ import annotations

import sys
from typing import Any, Final

# datasets collects rows one by one, in about 6 us each; that is worth it for rows that leave more bytes behind.
_WORTH: Final = 1000


def reduce(value: Any) -> Any:
    """Reduce a dataset that holds more rows than its own; None for any other value."""
    datasets = sys.modules.get("datasets")
    if datasets is None or type(value) is not getattr(datasets, "Dataset", None):
        return None
    table, rows = value.data, len(value)
    # A dataset on disk is pickled as the paths of its files.
    if table.num_rows <= rows or value.cache_files:
        return None
    if table.nbytes * (1 - rows / table.num_rows) <= _WORTH * rows:
        return None
    # The pickle refers to the new dataset as a whole: a dataset that is collected empties its state.
    return _as_it_is, (_own_rows(datasets, value),)


def _as_it_is(value: Any) -> Any:
    return value


def _own_rows(datasets: Any, value: Any) -> Any:
    """The same dataset over a table of its own rows; `flatten_indices` does this with a progress bar."""
    table = value.with_format("arrow")[:].combine_chunks() if len(value) else value.data.table.slice(0, 0)
    own = datasets.Dataset(datasets.table.InMemoryTable(table), info=value.info, split=value.split)
    chosen = dict(value.format)
    options = chosen.pop("format_kwargs")
    if chosen["columns"] == own.column_names:
        chosen["columns"] = None
    return own.with_format(**chosen, **options)
