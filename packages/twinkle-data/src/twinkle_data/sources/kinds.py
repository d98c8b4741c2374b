"""Kinds of datasets and columns: whether rows are plain values, and what to use instead of a value without rows."""

from __future__ import annotations

from collections.abc import ItemsView, KeysView, Mapping, Sequence, Set
from numbers import Integral
from typing import Any, Final

from twinkle_data.sources.parts import library_of

_INSTEAD: Final = {
    ("pandas", "DataFrame"): 'gives columns; use dict(frame), or frame.to_dict("records")',
    ("polars", "DataFrame"): "gives frames of one row; use frame.to_dict(), or frame.to_dicts()",
    ("polars", "LazyFrame"): "has no rows before it is collected; use frame.collect().to_dicts()",
    ("pyarrow", "Table"): "gives columns; use table.to_pylist(), or datasets.Dataset(table)",
    ("pyarrow", "RecordBatch"): "gives columns; use batch.to_pylist()",
    ("datasets", "DatasetDict"): 'holds splits; use one of them, such as dataset["train"]',
    ("datasets", "IterableDatasetDict"): 'holds splits; use one of them, such as dataset["train"]',
}
_TABLES: Final[tuple[str, ...]] = ("arrow", "polars", "pandas")


class ArrowRows(Sequence[Any]):
    """An array of Arrow that gives values in place of Arrow's scalars, which equal nothing.

    Args:
        column: The array, in one part or in chunks.
    """

    def __init__(self, column: Any) -> None:
        self.column = column

    def __len__(self) -> int:
        return len(self.column)

    def __getitem__(self, index: Any) -> Any:
        return self.column[index].as_py()


class PolarsLists(Sequence[Any]):
    """A series of lists or arrays of polars that gives lists in place of series.

    Args:
        series: The series.
    """

    def __init__(self, series: Any) -> None:
        self.series = series

    def __len__(self) -> int:
        return len(self.series)

    def __getitem__(self, index: Any) -> Any:
        row = self.series[index]
        return row.to_list() if is_kind(row, "polars", "Series") else row


def is_kind(value: object, library: str, *names: str) -> bool:
    """Whether it is an instance of one of a library's classes, which need not be imported."""
    return any(kind.__name__ in names and library_of(kind) == library for kind in type(value).__mro__)


def by_position(rows: Any) -> Any:
    """Rows that are read by position and give values: pandas' series without labels, Arrow's arrays without scalars."""
    if is_kind(rows, "pandas", "Series"):
        return rows.array
    if is_kind(rows, "pyarrow", "Array", "ChunkedArray"):
        return ArrowRows(rows)
    if is_kind(rows, "polars", "Series") and rows.dtype.is_nested():
        return PolarsLists(rows)
    return rows


def refuse_frames(dataset: object) -> None:
    """Refuse a value that does not give rows by position.

    Raises:
        TypeError: It does; the message says what to use.
    """
    for kind in type(dataset).__mro__:
        advice = _INSTEAD.get((library_of(kind), kind.__name__))
        if advice is not None:
            raise TypeError(f"a loader reads rows by position, and {type(dataset).__name__} {advice}")
    _refuse_tables(dataset)
    if getattr(dataset, "ndim", None) == 0:
        raise TypeError(f"a {type(dataset).__name__} without dimensions has no rows; pass a list of samples")


def _refuse_tables(dataset: Any) -> None:
    """Refuse a Hugging Face dataset or stream whose format gives a table in place of each row.

    Raises:
        TypeError: It does.
    """
    if is_kind(dataset, "datasets", "Dataset"):
        format_type, tables = dataset.format["type"], _TABLES[:2]
    elif is_kind(dataset, "datasets", "IterableDataset"):
        format_type, tables = getattr(getattr(dataset, "_formatting", None), "format_type", None), _TABLES
    else:
        return
    if format_type in tables:
        raise TypeError(
            f"this {type(dataset).__name__} has the format {format_type!r}, which gives a table of one row in place of "
            'a row; use dataset.with_format(None), or "numpy" or "torch"'
        )


def is_rows_by_number(dataset: Mapping[Any, Any]) -> bool:
    """Whether a dict holds rows under the numbers 0, 1, ..., as torch's loader reads it, and not columns under names.

    Raises:
        ValueError: Its keys are whole numbers, but not these.
        TypeError: They are, and the values are columns.
    """
    if not dataset or not all(isinstance(key, Integral) and not isinstance(key, bool) for key in dataset):
        return False
    first = next(iter(dataset.values()))
    if is_kind(first, "pandas", "Series", "DataFrame") or is_kind(first, "polars", "Series"):
        raise TypeError(
            f"the keys of this dict are whole numbers and its values columns ({type(first).__name__}): name the "
            "columns by texts, or pass list(dataset.values()) if each is a row"
        )
    if set(dataset) != set(range(len(dataset))):
        missing = next(number for number in range(len(dataset)) if number not in dataset)
        raise ValueError(
            f"a dict with whole numbers as keys holds the rows 0 to {len(dataset) - 1}, and row {missing} is missing; "
            "pass list(dataset.values()), or name columns by texts"
        )
    return True


def refuse_unordered(rows: object, what: str) -> None:
    """Refuse a value whose order differs between processes.

    Args:
        rows: A dataset, or an iterator over one.
        what: Its name in the error.

    Raises:
        TypeError: It is a set, or an iterator over one.
    """
    unordered = (
        isinstance(rows, Set) and not isinstance(rows, (KeysView, ItemsView)) and not hasattr(rows, "__getitem__")
    )
    if unordered or type(rows) is type(iter(set())):
        raise TypeError(
            f"{what} is a {type(rows).__name__}, which has another order in each process and each run: use "
            "sorted(...), or a list"
        )


def check_column(name: object, column: object) -> None:
    """Refuse a value that is no column.

    Raises:
        TypeError: It is a text, a frame, a dict, a set, or has no rows by index.
    """
    kind, why = type(column).__name__, ""
    if isinstance(name, Integral):
        why = "its name is a whole number and other keys are not; name all columns by texts"
    elif isinstance(column, (str, bytes)):
        why = "it would be cut into letters; use a list with a text for each row"
    elif kind in ("DataFrame", "Table", "RecordBatch"):
        why = "perhaps two columns have the same name; use one column for each name"
    elif isinstance(column, (Mapping, set, frozenset)):
        why = "it has no rows by position; use a list"
    elif getattr(column, "ndim", None) == 0:
        why = "it has no dimension; use a list or an array with a value for each row"
    elif not hasattr(column, "__len__") or not hasattr(column, "__getitem__"):
        why = "it has no length or no rows by index; use a list"
    if why:
        raise TypeError(f"column {name!r} of the dataset is a {kind}: {why}")


def is_array_of_pandas(value: object) -> bool:
    """Whether it is an array of pandas'."""
    return library_of(type(value)) == "pandas" and hasattr(value, "dtype")


def is_plain(value: object) -> bool:
    """Whether reading a row of it runs no code but Python's, numpy's, torch's and Arrow's."""
    return type(value) in (list, tuple, range, ArrowRows, PolarsLists) or _is_array(value)


def is_plain_column(column: object) -> bool:
    """The same for a column, which may be a library's."""
    if type(column).__module__ == "datasets.arrow_dataset" and type(column).__name__ == "Column":
        source: Any = column
        while not is_hugging_face(source):
            if not hasattr(source, "source"):
                return False
            source = source.source
        return bool(source.format["type"] != "custom")
    return is_plain(column) or library_of(type(column)) in ("pandas", "polars", "pyarrow")


def _is_array(dataset: object) -> bool:
    return library_of(type(dataset)) in ("numpy", "torch") and hasattr(dataset, "dtype")


def is_tensors(dataset: object) -> bool:
    """Whether it is torch's TensorDataset."""
    return type(dataset).__module__ == "torch.utils.data.dataset" and type(dataset).__name__ == "TensorDataset"


def is_hugging_face(dataset: object) -> bool:
    """Whether it is a map-style dataset of Hugging Face's, with no code of the user's in its class."""
    return type(dataset).__module__ == "datasets.arrow_dataset" and type(dataset).__name__ == "Dataset"
