"""Rows: which values have rows, how many, and how they are cut.

Data parallelism divides rows: the elements of a list, tuple or range, the first dim of an array or tensor, the rows of
a frame, table or dataset. Mappings, dataclasses and named tuples have the rows of their columns. A value of an unknown
type that is iterable, or has a length or items by index, is an error. All other values have no rows and go whole.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, runtime_checkable

from twinkle_remote.errors import DispatchError
from twinkle_remote.protocol.component import is_component_type
from twinkle_remote.values.columns import columns, is_by_time, is_named, is_tensor_collection, part_path, rebuild
from twinkle_remote.values.left_out import LeavingSplitter, LeftOut
from twinkle_remote.values.sequences import Lists, Ranges, Tuples
from twinkle_remote.values.unknown import field_with_rows, forget_kinds, is_text_of_bytes, refuse, row_protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

T = TypeVar("T")
PLAIN = frozenset({int, float, str, bytes, bool, complex, type(None), LeftOut})


class Splitter(Protocol[T]):
    """Cuts and joins values of one type by rows; never mutates its arguments."""

    def length(self, value: T) -> int | None:
        """Number of rows; None if this value has none (a 0-d array)."""

    def slice(self, value: T, start: int, stop: int) -> T:
        """Rows [start, stop), as a view if the type allows it."""

    def concat(self, values: Sequence[T]) -> T:
        """The rows of all values, one after the other; at least one value."""


@runtime_checkable
class ReducibleSplitter(Splitter[T], Protocol[T]):
    """A splitter that also compares and reduces its values.

    Both methods are optional: values of a plain `Splitter` are compared by `==`, and reduced by `+`, `*` and `/`.
    """

    def equal(self, left: T, right: T) -> bool:
        """Whether two values of one type are equal as wholes; NaN equals NaN."""

    def reduce(self, how: str, values: Sequence[T], weights: Sequence[float] | None) -> T:
        """The elementwise sum or mean.

        Args:
            how: "sum" or "mean".
            values: At least one; values with a `shape` all have the same shape.
            weights: One for each value, at or above 0 and not all 0; None for equal weights.
        """


_registered: dict[type, Splitter[Any]] = {list: Lists(), tuple: Tuples(), range: Ranges()}
_found: dict[type, Splitter[Any] | None] = {}
_reducible: dict[type, ReducibleSplitter[Any] | None] = {}
_marking: dict[type, bool] = {}
_ADAPTERS = {
    ("datasets", "Column"): "datasets",
    ("datasets", "Dataset"): "datasets",
    ("numpy", "generic"): "numpy",
    ("numpy", "ndarray"): "numpy",
    ("pandas", "DataFrame"): "pandas",
    ("pandas", "ExtensionArray"): "pandas",
    ("pandas", "Index"): "pandas",
    ("pandas", "Series"): "pandas",
    ("polars", "DataFrame"): "polars",
    ("polars", "Series"): "polars",
    ("pyarrow", "Array"): "pyarrow",
    ("pyarrow", "ChunkedArray"): "pyarrow",
    ("pyarrow", "RecordBatch"): "pyarrow",
    ("pyarrow", "Table"): "pyarrow",
    ("torch", "Tensor"): "torch",
}


def set_splitter(kind: type[T], splitter: Splitter[T]) -> None:
    """Set the splitter of a type, in this process only."""
    _registered[kind] = splitter
    _found.clear()
    _reducible.clear()
    _marking.clear()
    forget_kinds()


def splitter_of(kind: type) -> Splitter[Any] | None:
    """The splitter of a type or of its nearest base; None if such values have no rows of their own."""
    try:
        return _found[kind]
    except KeyError:
        return _found.setdefault(kind, _find(kind))


def reducible_splitter_of(kind: type) -> ReducibleSplitter[Any] | None:
    """The splitter of a type, if it compares and reduces its values; None otherwise."""
    try:
        return _reducible[kind]
    except KeyError:
        splitter = splitter_of(kind)
        return _reducible.setdefault(kind, splitter if isinstance(splitter, ReducibleSplitter) else None)


def holds_marks(kind: type) -> bool:
    """Whether values of a type can have a mark in place of a column: others keep the columns that nobody reads."""
    try:
        return _marking[kind]
    except KeyError:
        splitter = splitter_of(kind)
        return _marking.setdefault(kind, splitter is None or isinstance(splitter, LeavingSplitter))


def _find(kind: type) -> Splitter[Any] | None:
    if is_component_type(kind) or is_by_time(kind):
        return None
    if is_tensor_collection(kind) and kind not in _registered:
        return _adapter("tensordict")
    for base in kind.__mro__:
        if base in _registered and not (base is tuple and is_named(kind)):
            return _registered[base]
        adapter = _ADAPTERS.get((base.__module__.partition(".")[0], base.__name__))
        if adapter is not None:
            return _adapter(adapter)
    return None


def _adapter(name: str) -> Splitter[Any]:
    return cast("Splitter[Any]", importlib.import_module(f"twinkle_remote.values.adapters.{name}").SPLITTER)


def refuse_unknown(value: object, path: str) -> None:
    """Refuse a value of an unknown type that is iterable, or has a length or items by index.

    Raises:
        DispatchError: The value is one of these; the message lists what to do.
    """
    kind = type(value)
    why = None if kind in PLAIN or splitter_of(kind) is not None else row_protocol(kind)
    if why is not None and not is_text_of_bytes(value):
        raise refuse(value, path, why)


def refuse_hidden_rows(value: object, path: str) -> None:
    """Refuse what `refuse_unknown` refuses, and an object that holds rows in fields that are not known as columns.

    Raises:
        DispatchError: The value is one of these; the message lists what to do.
    """
    refuse_unknown(value, path)
    if type(value) in PLAIN or splitter_of(type(value)) is not None:
        return
    field = field_with_rows(value, may_have_rows)
    if field is not None:
        raise refuse(value, path, f"holds rows in {path}{field}")


def may_have_rows(value: object, *, fields: bool = False) -> bool:
    """Whether a value has rows, or is of an unknown type that looks as if it had some; see `lengths`."""
    if type(value) in PLAIN:
        return False
    try:
        return next(lengths(value, "", fields=fields), None) is not None
    except DispatchError:
        return True


def lengths(value: object, path: str, *, fields: bool = False) -> Iterator[tuple[str, int]]:
    """Every part of a value that has rows, as (path, number of rows).

    Args:
        value: Any value.
        path: What it is, for messages.
        fields: Also refuse objects that hold rows in fields of their own.

    Raises:
        DispatchError: A part of an unknown type looks as if it had rows.
    """
    splitter = splitter_of(type(value))
    if splitter is not None:
        rows = splitter.length(value)
        if rows is not None:
            yield path, rows
        return
    parts = columns(value)
    if parts is None:
        (refuse_hidden_rows if fields else refuse_unknown)(value, path)
        return
    for key, part in parts.items():
        yield from lengths(part, part_path(path, value, key), fields=fields)


def common_length(found: Sequence[tuple[str, int]]) -> int | None:
    """The common length of all parts; None if there are no parts.

    Raises:
        DispatchError: The lengths differ; the message names each part with its length.
    """
    if not found:
        return None
    if len({rows for _, rows in found}) > 1:
        listing = ", ".join(f"{path} has {rows}" for path, rows in found)
        raise DispatchError(
            f"what one call splits must have one number of rows, but {listing}; mark what must go whole with "
            "Replicate(value) or remote_function(replicate=(...)), or name what is split with split=(...)"
        )
    return found[0][1]


def rows_of(value: object, path: str = "value", *, fields: bool = False) -> int | None:
    """Number of rows of a value; None when it has none. The arguments are those of `lengths`.

    Raises:
        DispatchError: Its columns differ in length, or a part has an unknown type.
    """
    return common_length(list(lengths(value, path, fields=fields)))


def counted_rows(arguments: Sequence[object]) -> int | None:
    """Rows of a call that are no fillers, where a list among its arguments has `valid`; None where none has it."""
    for value in arguments:
        if not isinstance(value, list) or type(value) is list:
            continue
        valid = getattr(value, "valid", None)
        if isinstance(valid, list) and len(valid) == len(value):
            return sum(map(bool, valid))
    return None


def take(value: T, start: int, stop: int) -> T:
    """Rows [start, stop) of a value; columns are cut, and parts without rows stay whole."""
    splitter = splitter_of(type(value))
    if splitter is not None:
        return value if splitter.length(value) is None else cast("T", splitter.slice(value, start, stop))
    parts = columns(value)
    if parts is None:
        return cast("T", value[:]) if isinstance(value, LeftOut) else value
    fresh = [take(part, start, stop) for part in parts.values()]
    return value if all(new is old for new, old in zip(fresh, parts.values(), strict=True)) else rebuild(value, fresh)


def equal(left: object, right: object) -> bool:
    """Whether two values are equal, arrays and tensors as wholes; NaN equals NaN."""
    if type(left) is not type(right):
        return False
    splitter = reducible_splitter_of(type(left))
    if splitter is not None:
        return bool(splitter.equal(left, right))
    try:
        return bool(left == right) or bool(left != left and right != right)
    except (TypeError, ValueError):  # a comparison without a truth value
        return False


def size_in_bytes(value: object) -> int:
    """Size in bytes of an array, tensor or table; 0 if it has no `nbytes`."""
    try:
        nbytes = cast("Any", value).nbytes
    except Exception:  # a user's property, and sparse tensors, may raise anything
        return 0
    return nbytes if isinstance(nbytes, int) else 0


def shape_of(value: object) -> tuple[int, ...]:
    """The shape of an array or tensor, for comparison; empty if it has none."""
    nested = bool(getattr(value, "is_nested", False))
    return () if nested else tuple(getattr(value, "shape", ()))
