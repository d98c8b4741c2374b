"""Boxes: axis-aligned blocks of a tensor's global index space, and their arithmetic."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


class Box(NamedTuple):
    """The block of a global tensor that starts at `offset` and has `shape`; a scalar has empty tuples."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @staticmethod
    def whole(shape: tuple[int, ...]) -> Box:
        """The box that covers all of a tensor of this shape."""
        return Box((0,) * len(shape), shape)

    @property
    def stop(self) -> tuple[int, ...]:
        """One past the last index in each dimension."""
        return tuple(start + size for start, size in zip(self.offset, self.shape, strict=True))

    @property
    def volume(self) -> int:
        """Number of elements; 1 for a scalar."""
        return prod(self.shape)

    def within(self, other: Box) -> bool:
        """Whether every element of this box lies in `other`."""
        return all(a >= b for a, b in zip(self.offset, other.offset, strict=True)) and all(
            a <= b for a, b in zip(self.stop, other.stop, strict=True)
        )

    def intersect(self, other: Box) -> Box | None:
        """The elements that both boxes hold; None if there are none."""
        offset = tuple(map(max, self.offset, other.offset))
        shape = tuple(b - a for a, b in zip(offset, map(min, self.stop, other.stop), strict=True))
        return Box(offset, shape) if all(size > 0 for size in shape) else None

    def minus(self, other: Box) -> list[Box]:
        """This box without the elements of `other`, as disjoint boxes."""
        common = self.intersect(other)
        if common is None:
            return [self] if self.volume else []
        rest: list[Box] = []
        offset, stop = list(self.offset), list(self.stop)
        for dim, (low, high) in enumerate(zip(common.offset, common.stop, strict=True)):
            for start, end in ((offset[dim], low), (high, stop[dim])):
                if start < end:
                    sides = list(zip(offset, stop, strict=True))
                    sides[dim] = (start, end)
                    rest.append(Box(tuple(a for a, _ in sides), tuple(b - a for a, b in sides)))
            offset[dim], stop[dim] = low, high
        return rest

    def slabs(self, elements: int) -> Iterator[Box]:
        """Cut into boxes of at most `elements` elements, along the outermost dimensions, in row-major order."""
        if self.volume <= elements:
            yield self
            return
        dim = next(i for i, size in enumerate(self.shape) if size > 1)
        rows = max(1, elements // (self.volume // self.shape[dim]))
        for start in range(0, self.shape[dim], rows):
            size = min(rows, self.shape[dim] - start)
            part = Box(
                (*self.offset[:dim], self.offset[dim] + start, *self.offset[dim + 1 :]),
                (*self.shape[:dim], size, *self.shape[dim + 1 :]),
            )
            yield from part.slabs(elements)

    def inside(self, outer: Box) -> tuple[slice, ...]:
        """The index of this box in a tensor that holds `outer`."""
        return tuple(
            slice(mine - base, mine - base + size)
            for mine, base, size in zip(self.offset, outer.offset, self.shape, strict=True)
        )

    def __str__(self) -> str:
        return "[" + ", ".join(f"{a}:{b}" for a, b in zip(self.offset, self.stop, strict=True)) + "]"
