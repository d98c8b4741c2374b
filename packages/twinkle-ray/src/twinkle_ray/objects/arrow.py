"""Slices of pyarrow tables, pickled without the other rows of the table.

pyarrow pickles whole buffers, so each rank would get the rows of all ranks. Its IPC format writes the slice alone.
"""

from __future__ import annotations

import sys
from typing import Any

_SLACK = 4096


def reduce(value: Any) -> Any:
    """Reduce a pyarrow slice anywhere inside a value; None for any other value."""
    arrow = sys.modules.get("pyarrow")
    if arrow is None or not isinstance(value, arrow.Table | arrow.RecordBatch | arrow.Array | arrow.ChunkedArray):
        return None
    if value.get_total_buffer_size() <= 2 * value.nbytes + _SLACK:
        return None
    if isinstance(value, arrow.Table):
        return _through_ipc(arrow, value).__reduce_ex__(5)
    if isinstance(value, arrow.RecordBatch):
        return _batch(arrow, value).__reduce_ex__(5)
    if not isinstance(value, arrow.ChunkedArray) and not len(value):
        return arrow.nulls(0, value.type).__reduce_ex__(5)
    column = _through_ipc(arrow, arrow.table({"": value})).column(0)
    return (column if isinstance(value, arrow.ChunkedArray) else column.chunk(0)).__reduce_ex__(5)


def _through_ipc(arrow: Any, table: Any) -> Any:
    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(sink, table.schema, options=arrow.ipc.IpcWriteOptions(unify_dictionaries=True)) as writer:
        writer.write_table(table)
    return arrow.ipc.open_stream(sink.getvalue()).read_all()


def _batch(arrow: Any, value: Any) -> Any:
    if not len(value):
        return arrow.record_batch([arrow.nulls(0, field.type) for field in value.schema], schema=value.schema)
    return _through_ipc(arrow, arrow.Table.from_batches([value])).to_batches()[0]
