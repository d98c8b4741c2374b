"""The rank at each coordinate of a mesh: one stride for each dim, as in a numpy array, or a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from .sizes import whole_number


@dataclass(frozen=True)
class Layout:
    """Ranks over dims: `rank = offset + sum(coordinate * stride)`, or the table's entry at that place.

    Different coordinates have different ranks: the constructor refuses all else.

    Attributes:
        shape: Size of each dim, outermost first.
        strides: Step along each dim; 0 for a dim of size 1.
        offset: The place at coordinate 0.
        table: The rank at each place, row-major, where the ranks follow no strides; else None.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    table: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        shape = tuple([whole_number("size", size, 1) for size in self.shape])
        strides = tuple([step if size > 1 else 0 for step, size in zip(self.strides, shape, strict=True)])
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "strides", strides)
        whole_number("offset", self.offset, 0)
        reach = 0
        for stride, size, _ in reversed(self._by_stride):
            if whole_number("stride", stride, 1) <= reach:
                raise ValueError(f"strides={strides} of shape={shape} give a rank twice; use a table of ranks")
            reach += (size - 1) * stride
        if self.table is not None:
            ranks = [whole_number("ranks", rank, 0) for rank in self.table]
            if len(ranks) != prod(shape) or strides != Layout.contiguous(shape).strides or self.offset:
                raise ValueError(f"a table of {len(ranks)} ranks does not fit shape={shape}, strides={strides}")
            if len(self._place_of) != len(ranks):
                double = next(rank for rank in ranks if ranks.count(rank) > 1)
                raise ValueError(f"ranks holds {double} {ranks.count(double)} times; each rank must occur once")

    def __reduce__(self) -> tuple[object, ...]:
        return Layout, (self.shape, self.strides, self.offset, self.table)

    @classmethod
    def contiguous(cls, shape: Sequence[int]) -> Layout:
        """Number the ranks row-major from 0 on."""
        return cls(tuple(shape), tuple([prod(shape[dim + 1 :]) for dim in range(len(shape))]))

    @classmethod
    def of_ranks(cls, ranks: Sequence[int], shape: Sequence[int]) -> Layout:
        """Find the strides of row-major ranks, or keep them as a table."""
        base = cls.contiguous(shape)
        steps = tuple([ranks[step] - ranks[0] if step else 0 for step in base.strides])
        try:
            found = cls(base.shape, steps, ranks[0])
        except ValueError:  # strides that step back, or meet
            found = base
        return found if found.ranks() == list(ranks) else cls(base.shape, base.strides, table=tuple(ranks))

    @cached_property
    def _by_stride(self) -> list[tuple[int, int, int]]:
        """Stride, size and number of each dim above size 1, the largest stride first."""
        dims = zip(self.strides, self.shape, range(len(self.shape)), strict=True)
        return sorted([found for found in dims if found[1] > 1], reverse=True)

    @cached_property
    def _place_of(self) -> dict[int, int]:
        return {rank: place for place, rank in enumerate(self.table or ())}

    def rank(self, coords: Sequence[int]) -> int:
        """The rank at coordinates."""
        place = self.offset + sum(map(int.__mul__, coords, self.strides))
        return place if self.table is None else self.table[place]

    def coords(self, rank: int) -> list[int] | None:
        """The coordinates of a rank; None where no coordinates have it."""
        rest = (rank if self.table is None else self._place_of.get(rank, -1)) - self.offset
        coords = [0] * len(self.shape)
        for stride, size, dim in self._by_stride:
            coords[dim], rest = divmod(rest, stride)
            if not 0 <= coords[dim] < size:
                return None
        return None if rest else coords

    def ranks(self, dims: Iterable[int] | None = None, coords: Sequence[int] | None = None) -> list[int]:
        """The ranks along some dims through coordinates, row-major in the given order of dims; all by default."""
        chosen = range(len(self.shape)) if dims is None else list(dims)
        fixed = [own * self.strides[dim] for dim, own in enumerate(coords or ()) if dim not in chosen]
        places = [self.offset + sum(fixed)]
        for dim in chosen:
            places = [place + own * self.strides[dim] for place in places for own in range(self.shape[dim])]
        return places if self.table is None else [self.table[place] for place in places]

    def select(self, parts: Sequence[Sequence[int]], coords: Sequence[int]) -> Layout:
        """The layout of some dims through coordinates, with each of `parts` joined to one dim, outermost first."""
        shape = [prod(self.shape[dim] for dim in part) for part in parts]
        flat = [dim for part in parts for dim in part]
        if self.table is None and all(len(part) == 1 for part in parts):
            fixed = sum(own * self.strides[dim] for dim, own in enumerate(coords) if dim not in flat)
            return Layout(tuple(shape), tuple([self.strides[dim] for dim in flat]), self.offset + fixed)
        return Layout.of_ranks(self.ranks(flat, coords), shape)


def flattened(ranks: Any) -> tuple[list[int], list[int]]:
    """Return nested ranks in row-major order and their shape."""
    level: list[Any] = [ranks.tolist() if hasattr(ranks, "tolist") else ranks]
    shape: list[int] = []
    while any(isinstance(item, Iterable) and not isinstance(item, str) for item in level):
        lengths = {len(item) if isinstance(item, Sequence) else 0 for item in level}
        if len(lengths) > 1 or lengths == {0}:
            raise ValueError(f"ranks is empty or ragged at depth {len(shape)}: lists of one depth have one length")
        shape.append(*lengths)
        level = [part for item in level for part in item]
    if not shape:
        raise ValueError(f"ranks={ranks!r} must be a list with one level for each dim; [{ranks!r}] would be one dim")
    return [whole_number("ranks", rank, 0) for rank in level], shape
