"""Rows of pyarrow tables, record batches and arrays, chunked or not."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_arrow: Any = importlib.import_module("pyarrow")


class ArrowSplitter:
    """Splitter for `pyarrow.Table`, `RecordBatch`, `Array` and `ChunkedArray`."""

    def length(self, value: Any) -> int:
        """Number of rows."""
        return len(value)

    def slice(self, value: Any, start: int, stop: int) -> Any:
        """A view of rows [start, stop)."""
        return value.slice(start, stop - start)

    def concat(self, values: Sequence[Any]) -> Any:
        """One table, batch or array; pyarrow refuses other columns and types.

        Raises:
            ValueError: The metadata differ, apart from what pandas tells of an index.
        """
        if isinstance(values[0], _arrow.Table | _arrow.RecordBatch):
            values = _of_one_schema(values)
        first = values[0]
        if isinstance(first, _arrow.Table):
            return _arrow.concat_tables(values)
        if isinstance(first, _arrow.RecordBatch):
            return _arrow.concat_batches(values)
        if isinstance(first, _arrow.Array):
            return _arrow.concat_arrays(values)
        return _arrow.chunked_array([chunk for value in values for chunk in value.chunks], type=first.type)


def _of_one_schema(values: Sequence[Any]) -> Sequence[Any]:
    """The tables, without the metadata of pandas where they differ: they count the rows of each table."""
    first = values[0].schema
    if all(value.schema.equals(first, check_metadata=True) for value in values):
        return values
    told = [{key: own for key, own in (value.schema.metadata or {}).items() if key != b"pandas"} for value in values]
    if any(other != told[0] for other in told):
        raise ValueError(f"their metadata are {told!r:.200}")
    return [value.replace_schema_metadata(told[0] or None) for value in values]


SPLITTER = ArrowSplitter()
