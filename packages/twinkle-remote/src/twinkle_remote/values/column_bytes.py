"""Bytes by column: how many of the bytes that came for a value are those of each of its columns.

Nothing looks at rows: arrays, tensors and tables know their size, and a store knows how long a column was that it has
pickled alone. What is left, such as the description of a value with its texts and small lists, belongs to no column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, runtime_checkable

from twinkle_remote.values.columns import columns, is_named
from twinkle_remote.values.rows import PLAIN, size_in_bytes, splitter_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

T = TypeVar("T", contravariant=True)
MOST_COLUMNS = 256
"""Of a value, or of a call, with more columns the others count under no column."""
_sizing: dict[type, bool] = {}


@runtime_checkable
class SizingSplitter(Protocol[T]):
    """A splitter that says how large the columns are; those of others count under no column."""

    def sizes(self, value: T) -> Mapping[Hashable, int]:
        """The bytes of each column, at or above 0; of what is no array, such as texts, also 0."""


class ColumnBytes(int):
    """A number of bytes that says how many of them are those of each column.

    Args:
        total: All bytes.
        by_column: Those of each column.
    """

    by_column: Mapping[Hashable, int]

    def __new__(cls, total: int, by_column: Mapping[Hashable, int]) -> ColumnBytes:
        """A number of bytes, with those of each column."""
        made = super().__new__(cls, total)
        made.by_column = by_column
        return made


def opened_bytes(value: object) -> int:
    """The bytes of a value, by its columns where it has some; 0 if it has no size."""
    by_column = bytes_by_column(value)
    return ColumnBytes(sum(by_column.values()), by_column) if by_column else size_in_bytes(value)


def bytes_by_column(value: Any) -> Mapping[Hashable, int]:
    """The bytes of each column; empty for a value without columns, or with more than `MOST_COLUMNS`."""
    kind = type(value)
    if kind in PLAIN or kind is list or is_named(kind):
        return {}
    try:
        splitter = splitter_of(kind)
        if splitter is not None:
            found = _sizes(splitter, value)
            return found if len(found) <= MOST_COLUMNS else {}
        parts = columns(value) or {}
        return {name: _size(part) for name, part in parts.items()} if len(parts) <= MOST_COLUMNS else {}
    except Exception:  # a user's type may raise anything, and no call fails for its metrics
        return {}


def _size(part: Any) -> int:
    if type(part) in PLAIN or type(part) is list:
        return 0
    splitter = splitter_of(type(part))
    if splitter is not None:
        return sum(_sizes(splitter, part).values()) or size_in_bytes(part)
    parts = columns(part)
    return size_in_bytes(part) if parts is None else sum(map(_size, parts.values()))


def _sizes(splitter: object, value: object) -> Mapping[Hashable, int]:
    kind = type(splitter)
    if kind not in _sizing:  # the check itself takes longer than all else here
        _sizing[kind] = isinstance(splitter, SizingSplitter)
    return cast("SizingSplitter[object]", splitter).sizes(value) if _sizing[kind] else {}


def count_columns(found: dict[str, int] | None, value: object, size: int) -> dict[str, int] | None:
    """Add the bytes that came for a value to those by column.

    Args:
        found: The bytes of each column so far, which change; None without any.
        value: What they came for.
        size: How many came; a `ColumnBytes` where the store knows those of each column.

    Returns:
        The bytes of each column, together never more than all that came; None without any.
    """
    by_column = size.by_column if isinstance(size, ColumnBytes) else bytes_by_column(value)
    left = int(size)
    for name, nbytes in by_column.items():
        own = min(nbytes, left)
        if own > 0:
            found = {} if found is None else found
            key = name if type(name) is str else _text(name)
            found[key] = found.get(key, 0) + own
            left -= own
    return found


def _text(name: Hashable) -> str:
    try:
        return str(name)
    except Exception:  # as in `bytes_by_column`
        return type(name).__name__


def merge_columns(found: dict[str, int] | None, more: Mapping[str, int]) -> dict[str, int]:
    """Add bytes by column to others, which change; of a name beyond `MOST_COLUMNS` nothing is kept."""
    found = {} if found is None else found
    for name, nbytes in more.items():
        if name in found or len(found) < MOST_COLUMNS:
            found[name] = found.get(name, 0) + nbytes
    return found
