"""Rows of pyarrow tables, record batches and arrays, chunked or not."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from twinkle_remote.protocol.tables import Rows

_arrow: Any = importlib.import_module("pyarrow")


class ArrowSplitter:
    """Splitter for `pyarrow.Table`, `RecordBatch`, `Array` and `ChunkedArray`."""

    def length(self, value: Any) -> int:
        """Number of rows."""
        return len(value)

    def slice(self, value: Any, start: int, stop: int) -> Any:
        """A view of rows [start, stop)."""
        return value.slice(start, stop - start)

    def take(self, value: Any, rows: Rows) -> Any:
        """Rows of these numbers."""
        return value.take(_arrow.array(rows, type=_arrow.int64()))

    def columns(self, value: Any) -> Sequence[Hashable] | None:
        """The columns of a table or record batch."""
        return value.schema.names if isinstance(value, _arrow.Table | _arrow.RecordBatch) else None

    def sizes(self, value: Any) -> Mapping[Hashable, int]:
        """The bytes of each column of a table or record batch; columns of one name count together."""
        names = self.columns(value)
        found: dict[Hashable, int] = {}
        for name, column in () if names is None else zip(names, value.columns, strict=True):
            found[name] = found.get(name, 0) + int(column.nbytes)
        return found

    def select(self, value: Any, names: Sequence[Hashable]) -> Any:
        """The table with these columns."""
        return value.select(list(names))

    def join(self, values: Sequence[Any]) -> Any:
        """The columns of all tables, row next to row."""
        fresh = values[0]
        for value in values[1:]:
            for field, column in zip(value.schema, value.columns, strict=True):
                place = fresh.schema.get_field_index(field.name)
                fresh = fresh.append_column(field, column) if place < 0 else fresh.set_column(place, field, column)
        return fresh

    def concat(self, values: Sequence[Any]) -> Any:
        """One table, batch or array; pyarrow refuses other columns and types.

        Raises:
            ValueError: The metadata differ, apart from what pandas notes of an index.
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
    metadata = [
        {key: own for key, own in (value.schema.metadata or {}).items() if key != b"pandas"} for value in values
    ]
    if any(other != metadata[0] for other in metadata):
        raise ValueError(f"their metadata are {metadata!r:.200}")
    return [value.replace_schema_metadata(metadata[0] or None) for value in values]


SPLITTER = ArrowSplitter()
