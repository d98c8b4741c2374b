"""Sequences of ranks that are computed, not stored."""

from __future__ import annotations

from _collections_abc import Sequence  # the same class; importing collections.abc costs milliseconds
from operator import index as whole_index

from .factors import expand

TYPE_CHECKING = False
if not TYPE_CHECKING:

    def overload(function: object) -> object:
        """Stand in for typing.overload, whose import costs more than this package."""
        return function
else:
    from typing import overload
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .factors import Factors


class Ranks(Sequence[int]):
    """An immutable sequence of ranks: equal to any list, tuple or range of the same ranks.

    Arithmetic ranks keep their (size, stride) factors and an offset only; irregular ones look their places up in a map.
    """

    __slots__ = ("_factors", "_length", "_offset", "_table")

    def __init__(self, factors: Factors, offset: int, table: tuple[int, ...] | None = None) -> None:
        length = 1
        for size, _ in factors:
            length *= size
        self._factors = factors
        self._offset = offset
        self._table = table
        self._length = length

    @classmethod
    def of(cls, ranks: Sequence[int]) -> Ranks:
        """Hold the given ranks as they are."""
        table = tuple(ranks)
        return cls(((len(table), 1),), 0, table)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...
    def __getitem__(self, index: int | slice) -> int | tuple[int, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(self._length)))
        place = whole_index(index)
        place += self._length if place < 0 else 0
        if not 0 <= place < self._length:
            raise IndexError(f"index {index} is outside a group of {self._length} ranks")
        rank = self._offset
        for size, stride in reversed(self._factors):
            place, digit = divmod(place, size)
            rank += digit * stride
        return rank if self._table is None else self._table[rank]

    def __iter__(self) -> Iterator[int]:
        table = self._table
        if table is None:
            if len(self._factors) == 1:
                size, stride = self._factors[0]
                return iter(range(self._offset, self._offset + size * stride, stride))
            return iter(expand(self._factors, self._offset))
        return iter([table[place] for place in expand(self._factors, self._offset)])

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Ranks) and other._table is None and self._table is None:
            return (self._factors, self._offset) == (other._factors, other._offset) or (
                len(self) == len(other) and list(self) == list(other)
            )
        if isinstance(other, (Ranks, list, tuple, range)):
            return len(self) == len(other) and list(self) == list(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        if len(self) <= 16:
            return str(list(self))
        return f"[{self[0]}, {self[1]}, {self[2]}, ..., {self[-1]}] ({len(self)} ranks)"


class Groups(Sequence[Ranks]):
    """Every group along some dims of a mesh, ascending by first rank; each is computed when it is read."""

    __slots__ = ("_group", "_starts")

    def __init__(self, starts: Ranks, group: Callable[[int], Ranks]) -> None:
        self._starts = starts
        self._group = group

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> Ranks: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Ranks, ...]: ...
    def __getitem__(self, index: int | slice) -> Ranks | tuple[Ranks, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        return self._group(self._starts[index])

    def __iter__(self) -> Iterator[Ranks]:
        return map(self._group, self._starts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (Groups, list, tuple)):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        if len(self) <= 16:
            return str(list(self))
        return f"[{self[0]!r}, {self[1]!r}, ..., {self[-1]!r}] ({len(self)} groups)"
