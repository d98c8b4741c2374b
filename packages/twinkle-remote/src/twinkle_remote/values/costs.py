"""The cost of each row of a value: the work that it takes, by the type of the value."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from twinkle_remote.values.columns import columns
from twinkle_remote.values.rows import PLAIN, splitter_of

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T", contravariant=True)


@runtime_checkable
class CostingSplitter(Protocol[T]):
    """A splitter of a type whose rows are more or less work; those of other types cost 1 each."""

    def costs(self, value: T) -> Sequence[float]:
        """The cost of each row, at or above 0."""


def costs_of(value: object) -> array[float] | None:
    """The costs of the rows of a value; of columns, those of the first column with rows. None if no type has costs.

    Args:
        value: Any value.
    """
    first = _first_with_rows(value)
    splitter: object = None if first is None else splitter_of(type(first))
    return array("d", splitter.costs(first)) if isinstance(splitter, CostingSplitter) else None


def _first_with_rows(value: Any) -> Any:
    if type(value) in PLAIN:
        return None
    splitter = splitter_of(type(value))
    if splitter is not None:
        return None if splitter.length(value) is None else value
    parts = columns(value) or {}
    return next((found for part in parts.values() if (found := _first_with_rows(part)) is not None), None)
