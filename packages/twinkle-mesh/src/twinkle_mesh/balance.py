"""The balanced split of rows over data ranks."""

from __future__ import annotations

from _collections_abc import Sequence  # the same class; importing collections.abc costs milliseconds
from heapq import heapreplace

from .rules.checks import at_least_one, whole_number

TYPE_CHECKING = False
if not TYPE_CHECKING:

    def overload(function: object) -> object:
        """Stand in for typing.overload, whose import costs more than this package."""
        return function
else:
    from typing import overload


def balanced_slice(total: int, parts: int, index: int) -> slice:
    """Return part `index` of `total` rows cut into `parts`: the first `total % parts` parts get one more.

    Args:
        total: Number of rows, at least 0.
        parts: Number of parts, at least 1.
        index: Which part, in [0, parts - 1].
    """
    total, parts, index = (
        whole_number("total_length", total),
        at_least_one("parts", parts),
        whole_number("index", index),
    )
    if total < 0:
        raise ValueError(f"total_length={total} must be at least 0; use 0")
    if not 0 <= index < parts:
        raise ValueError(f"index={index} is outside [0, {parts - 1}], the {parts} parts")
    share, longer = divmod(total, parts)
    start = index * share + min(index, longer)
    return slice(start, start + share + (index < longer))


def balanced_rows(costs: Sequence[float], parts: int) -> list[list[int]]:
    """Return the rows of each part, ascending, so that the sums of their costs are even.

    The most expensive row goes first. Each row goes to the part with the lowest cost so far; of equal parts, to the one
    with fewer rows, then to the first. Each part gets a row if there are enough rows. Rows of equal cost are divided
    into runs, as in `balanced_slice`. This is the greedy rule of R. L. Graham, "Bounds on multiprocessing timing
    anomalies".

    Args:
        costs: The cost of each row, finite and at or above 0.
        parts: Number of parts, at least 1.
    """
    parts = at_least_one("parts", parts)
    first = costs[0] if costs else 0
    if all(cost == first for cost in costs):
        slices = [balanced_slice(len(costs), parts, index) for index in range(parts)]
        return [list(range(part.start, part.stop)) for part in slices]
    rows: list[list[int]] = [[] for _ in range(parts)]
    heap = [(0.0, 0, part) for part in range(parts)]
    for row in sorted(range(len(costs)), key=costs.__getitem__, reverse=True):
        cost, count, part = heap[0]
        rows[part].append(row)
        heapreplace(heap, (cost + costs[row], count + 1, part))
    for part_rows in rows:
        part_rows.sort()
    return rows


class Slices(Sequence[slice]):
    """The balanced split of `total` rows into `parts` slices. A slice is computed when it is read."""

    __slots__ = ("_parts", "_total")

    def __init__(self, total: int, parts: int) -> None:
        balanced_slice(total, parts, 0)
        self._total = whole_number("total_length", total)
        self._parts = whole_number("parts", parts)

    def __len__(self) -> int:
        return self._parts

    @overload
    def __getitem__(self, index: int) -> slice: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[slice, ...]: ...
    def __getitem__(self, index: int | slice) -> slice | tuple[slice, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(self._parts)))
        place = index + self._parts if index < 0 else index
        if not 0 <= place < self._parts:
            raise IndexError(f"index {index} is outside the {self._parts} slices")
        return balanced_slice(self._total, self._parts, place)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (Slices, list, tuple)):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash((self._total, self._parts))

    def __repr__(self) -> str:
        return f"Slices(total={self._total}, parts={self._parts})"
