"""Rows: which values have them, how many, and how they are cut and joined again.

A row is what data parallelism divides: an element of a list or tuple, an index of the first dim of an array or tensor.
Dicts, dataclasses and named tuples have the rows of their columns. Everything else has none and goes whole.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
from collections import UserDict
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, cast

from twinkle_remote.errors import CollectError, DispatchError
from twinkle_remote.protocol.component import is_component_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

T = TypeVar("T")
PLAIN = frozenset({int, float, str, bytes, bool, complex, type(None)})


class Splitter(Protocol[T]):
    """How values of one type are cut into rows; never mutates what it is given."""

    def length(self, value: T) -> int | None:
        """Number of rows; None when this very value has none (a 0-d array)."""

    def slice(self, value: T, start: int, stop: int) -> T:
        """Rows [start, stop), as a view where the type allows."""

    def concat(self, values: Sequence[T]) -> T:
        """The rows of all values, one after the other; at least one value."""


class _Sequences(Generic[T]):
    def length(self, value: Any) -> int:
        return len(value)

    def slice(self, value: Any, start: int, stop: int) -> Any:
        return value[start:stop]


class _Lists(_Sequences[list[object]]):
    def concat(self, values: Sequence[list[object]]) -> list[object]:
        return [row for value in values for row in value]


class _Tuples(_Sequences[tuple[object, ...]]):
    def concat(self, values: Sequence[tuple[object, ...]]) -> tuple[object, ...]:
        return tuple(row for value in values for row in value)


_registered: dict[type, Splitter[Any]] = {list: _Lists(), tuple: _Tuples()}
_found: dict[type, Splitter[Any] | None] = {}
_ADAPTERS = {("numpy", "ndarray"): "numpy", ("numpy", "generic"): "numpy", ("torch", "Tensor"): "torch"}


def register_splitter(kind: type[T], splitter: Splitter[T]) -> None:
    """Teach dispatch and collect to divide values of a type, and of its subclasses.

    Args:
        kind: The type; a later registration replaces an earlier one.
        splitter: Its length, slice and concat.
    """
    _registered[kind] = splitter
    _found.clear()


def splitter_of(kind: type) -> Splitter[Any] | None:
    """The splitter for a type, its nearest base first; None when such values have no rows of their own."""
    try:
        return _found[kind]
    except KeyError:
        return _found.setdefault(kind, _find(kind))


def _find(kind: type) -> Splitter[Any] | None:
    if is_component_type(kind):
        return None
    for base in kind.__mro__:
        if base in _registered and not (base is tuple and hasattr(kind, "_fields")):
            return _registered[base]
        adapter = _ADAPTERS.get((base.__module__.partition(".")[0], base.__name__))
        if adapter is not None:
            module = importlib.import_module(f"twinkle_remote.values.adapters.{adapter}")
            return cast("Splitter[Any]", module.SPLITTER)
    return None


def columns(value: object) -> Mapping[object, object] | None:
    """The named parts of a dict, dataclass or named tuple; None for everything else."""
    form = _form_of(type(value))
    if form is None:
        return None
    if form == "mapping":
        return cast("Mapping[object, object]", value)
    if form == "named tuple":
        return dict(zip(cast("Any", value)._fields, cast("Any", value), strict=True))
    return {name: getattr(value, name) for name in _set_fields(value)}


def rebuild(value: T, parts: Sequence[object]) -> T:
    """A copy of a dict, dataclass or named tuple with other parts, in the order that `columns` gave them."""
    form = _form_of(type(value))
    if type(value) is dict:
        return cast("T", dict(zip(cast("Mapping[object, object]", value), parts, strict=True)))
    if form == "named tuple":
        return cast("T", cast("Any", value)._make(parts))
    twin = copy.copy(value)
    if form == "mapping":
        for key, part in zip(cast("Mapping[object, object]", value), parts, strict=True):
            cast("Any", twin)[key] = part
        return twin
    for name, part in zip(_set_fields(value), parts, strict=True):
        object.__setattr__(twin, name, part)
    return twin


_Form = Literal["mapping", "named tuple", "dataclass"]
_forms: dict[type, _Form | None] = {}


def is_mapping(value: object) -> bool:
    """Whether the parts of a value are those of a dict, which may differ from one value to the next."""
    return _form_of(type(value)) == "mapping"


def _form_of(kind: type) -> _Form | None:
    try:
        return _forms[kind]
    except KeyError:
        return _forms.setdefault(kind, _find_form(kind))


def _find_form(kind: type) -> _Form | None:
    if is_component_type(kind):
        return None
    if issubclass(kind, dict | UserDict):
        return "mapping"
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return "named tuple"
    return "dataclass" if dataclasses.is_dataclass(kind) else None


def _set_fields(value: object) -> list[str]:
    fields = dataclasses.fields(cast("Any", value))
    return [field.name for field in fields if hasattr(value, field.name)]


def lengths(value: object, path: str) -> Iterator[tuple[str, int]]:
    """Every part of a value that has rows, as (path, number of rows)."""
    splitter = splitter_of(type(value))
    if splitter is not None:
        rows = splitter.length(value)
        if rows is not None:
            yield path, rows
        return
    for key, part in (columns(value) or {}).items():
        yield from lengths(part, below(path, value, key))


def below(path: str, value: object, key: object) -> str:
    """The path of a named part of a value."""
    return f"{path}[{key!r}]" if is_mapping(value) else f"{path}.{key}"


def common_length(found: Sequence[tuple[str, int]]) -> int | None:
    """The one length of all parts, or None when there are none.

    Raises:
        DispatchError: The lengths differ; the message names each part with its own.
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


def rows_of(value: object, path: str = "value") -> int | None:
    """Number of rows of a value; None when it has none.

    Raises:
        DispatchError: Its columns differ in length.
    """
    return common_length(list(lengths(value, path)))


def take(value: T, start: int, stop: int) -> T:
    """Rows [start, stop) of a value: columns are cut, parts without rows stay whole."""
    splitter = splitter_of(type(value))
    if splitter is not None:
        return value if splitter.length(value) is None else cast("T", splitter.slice(value, start, stop))
    parts = columns(value)
    if parts is None:
        return value
    return rebuild(value, [take(part, start, stop) for part in parts.values()])


def join(values: Sequence[T], path: str = "result") -> T:
    """The rows of all values in order; the inverse of cutting one value with `take`.

    Args:
        values: At least one, all of one shape. Parts without rows must be equal in all of them.
        path: What the values are, for messages.

    Raises:
        CollectError: They cannot be joined; the message says where and why.
    """
    first = values[0]
    if len(values) == 1:
        return first
    splitter = splitter_of(type(first))
    if splitter is not None and splitter.length(first) is not None:
        strangers = sorted({type(value).__name__ for value in values if splitter_of(type(value)) is not splitter})
        if strangers:
            raise CollectError(
                f"{path}: flatten joins values of one type, got {type(first).__name__} and {', '.join(strangers)}"
            )
        full = [value for value in values if splitter.length(value)]
        return _concat(splitter.concat, full or values[:1], path)
    parts = columns(first)
    if parts is None:
        return _same(values, path)
    tables = [columns(value) if type(value) is type(first) else None for value in values]
    for value, table in zip(values, tables, strict=True):
        if table is None or table.keys() != parts.keys():
            raise CollectError(
                f"{path}: flatten joins by column, but one has {_told(first, parts)}, another {_told(value, table)}"
            )
    return rebuild(
        first, [join([cast("Any", table)[key] for table in tables], below(path, first, key)) for key in parts]
    )


def join_columns(values: Sequence[Any], path: str) -> tuple[Any, ...]:
    """The rows of all values part by part, where each is a tuple of the same number of parts.

    Raises:
        CollectError: They cannot be joined; the message says where and why.
    """
    sizes = sorted({len(value) if isinstance(value, tuple) else -1 for value in values})
    if len(sizes) > 1 or sizes[0] < 0:
        kinds = ", ".join(sorted({f"{type(value).__name__} {value!r:.40}" for value in values}))
        raise CollectError(f"{path}: the method is annotated to return a tuple of fixed length, got {kinds}")
    return tuple(join(part, f"{path}[{i}]") for i, part in enumerate(zip(*values, strict=True)))


def _told(value: object, parts: Mapping[object, object] | None) -> str:
    return type(value).__name__ if parts is None else f"{type(value).__name__} of {', '.join(map(str, parts)) or '-'}"


def _concat(concat: Callable[[Sequence[T]], T], values: Sequence[T], path: str) -> T:
    if len(values) == 1:
        return values[0]
    try:
        return concat(values)
    except (ValueError, TypeError, RuntimeError) as error:
        shapes = [tuple(getattr(value, "shape", ())) for value in values]
        raise CollectError(f"{path}: the parts do not join, their shapes are {shapes}: {error}") from error


def _same(values: Sequence[T], path: str) -> T:
    first = values[0]
    if all(value is first or equal(value, first) for value in values[1:]):
        return first
    shown = ", ".join(repr(value)[:40] for value in values[:4])
    raise CollectError(
        f"{path}: flatten joins rows, and {type(first).__name__} has none (got {shown}); return a list, array or "
        "tensor, or collect with 'none', 'first', 'mean' or 'sum'"
    )


def equal(left: object, right: object) -> bool:
    """Whether two values are the same, arrays and tensors as wholes; NaN is the same as NaN."""
    if type(left) is not type(right):
        return False
    splitter = splitter_of(type(left))
    if splitter is not None and hasattr(splitter, "equal"):
        return bool(splitter.equal(left, right))
    try:
        return bool(left == right) or bool(left != left and right != right)
    except (TypeError, ValueError):  # a comparison that is no truth value
        return False
