"""Coordinates to ranks by arithmetic."""

from __future__ import annotations

from .factors import detect, expand, merged, nested, product, split
from .ranks import Ranks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Self

    from .factors import Factors


class Layout:
    """The rank at each coordinate: by the factors of each dim and an offset, or by a table where ranks are irregular.

    A place is the sum of the offset and the steps of all coordinates: the rank itself, or its index in the table.
    """

    __slots__ = ("_digits", "_places", "factors", "offset", "shape", "size", "table")

    def __init__(
        self,
        factors: tuple[Factors, ...],
        offset: int = 0,
        table: tuple[int, ...] | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        self.factors = factors
        self.offset = offset
        self.table = table
        self.shape = tuple([product(dim) for dim in factors]) if shape is None else shape
        total = 1
        for size in self.shape:
            total *= size
        self.size = total
        self._digits: tuple[tuple[int, int, int, int], ...] | None = None
        self._places: dict[int, int] | None = None

    @classmethod
    def contiguous(cls, shape: Sequence[int], offset: int = 0) -> Self:
        """Number the ranks in row-major order from `offset` on."""
        factors: list[Factors] = []
        stride = 1
        for size in reversed(shape):
            factors.append(((size, stride),) if size > 1 else ())
            stride *= size
        factors.reverse()
        return cls(tuple(factors), offset, None, tuple(shape))

    @classmethod
    def of_ranks(cls, ranks: Sequence[int], shape: Sequence[int]) -> Self:
        """Find the factors of explicit ranks in row-major order, or keep the ranks as a table."""
        found: list[Factors] = []
        weight = len(ranks)
        for size in shape:
            above, weight = weight, weight // size
            factors = detect([rank - ranks[0] for rank in ranks[:above:weight]])
            if factors is None:
                break
            found.append(factors)
        flat = [factor for factors in found for factor in factors]
        if len(found) == len(shape) and cls.is_sound(flat) and expand(tuple(flat), ranks[0]) == list(ranks):
            return cls(tuple(found), ranks[0])
        return cls(cls.contiguous(shape).factors, 0, tuple(ranks))

    @staticmethod
    def is_sound(factors: Iterable[tuple[int, int]]) -> bool:
        """Tell whether the factors give each coordinate a rank of its own."""
        return nested(factors)

    @property
    def key(self) -> tuple[tuple[Factors, ...], int, tuple[int, ...] | None]:
        """The parts that equal layouts have in common."""
        return self.factors, self.offset, self.table

    @property
    def highest(self) -> int:
        """The largest rank."""
        if self.table is not None:
            return max(self.table)
        return self.offset + sum((size - 1) * stride for dim in self.factors for size, stride in dim)

    def ranks(self, dims: Iterable[int] | None = None, origin: int | None = None) -> Ranks:
        """Return the ranks along `dims` through one place, in row-major order.

        Args:
            dims: The dims that change; all of them when None.
            origin: The place at which the coordinates in `dims` are 0; the offset when None.
        """
        chosen = self.factors if dims is None else [self.factors[dim] for dim in dims]
        flat = merged([factor for factors in chosen for factor in factors])
        return Ranks(flat, self.offset if origin is None else origin, self.table)

    def values(self) -> list[int]:
        """Return the rank at every coordinate, in row-major order."""
        places = expand(merged([factor for factors in self.factors for factor in factors]), self.offset)
        return places if self.table is None else [self.table[place] for place in places]

    def place(self, coords: Sequence[int]) -> int:
        """Return the place of coordinates."""
        place = self.offset
        for coord, factors in zip(coords, self.factors, strict=True):
            for size, stride in reversed(factors):
                coord, digit = divmod(coord, size)
                place += digit * stride
        return place

    def rank(self, coords: Sequence[int]) -> int:
        """Return the rank at coordinates that are within the shape."""
        place = self.place(coords)
        return place if self.table is None else self.table[place]

    def coords(self, rank: int) -> list[int] | None:
        """Return a rank's coordinates, or None for a rank that the mesh does not hold."""
        if self.table is not None:
            if self._places is None:
                self._places = {held: place for place, held in enumerate(self.table)}
            found = self._places.get(rank)
            if found is None:
                return None
            rank = found
        digits = self._digits
        if digits is None:
            digits = self._digits = self._weigh()
        rest = rank - self.offset
        if rest < 0:
            return None
        coords = [0] * len(self.shape)
        for stride, size, dim, weight in digits:
            digit = rest // stride
            if digit >= size:
                return None
            rest -= digit * stride
            coords[dim] += digit * weight
        return None if rest else coords

    def _weigh(self) -> tuple[tuple[int, int, int, int], ...]:
        digits: list[tuple[int, int, int, int]] = []
        for dim, factors in enumerate(self.factors):
            weight = 1
            for size, stride in reversed(factors):
                digits.append((stride, size, dim, weight))
                weight *= size
        return tuple(sorted(digits, reverse=True))

    def derive(self, change: Callable[[Layout], Layout]) -> Self:
        """Apply a change of factors. A table is read in the changed order, and its factors are looked for again."""
        if self.table is None:
            changed = change(self)
            if isinstance(changed, type(self)):
                return changed
            return type(self)(changed.factors, changed.offset, changed.table, changed.shape)
        table = self.table
        positions = change(Layout(self.factors))
        return self.of_ranks([table[place] for place in positions.values()], positions.shape)

    def select(self, dims: Sequence[int], rank_coords: Sequence[int]) -> Self:
        """Keep `dims` in the given order, with the other coordinates fixed."""
        origin = [0 if dim in dims else coord for dim, coord in enumerate(rank_coords)]
        return self.derive(lambda base: Layout(tuple([base.factors[dim] for dim in dims]), base.place(origin)))

    def flattened(self, parts: Sequence[Sequence[int]]) -> Self:
        """Join each listed run of dims into one, row-major as listed."""

        def fuse(base: Layout) -> Layout:
            dims = [merged([factor for dim in part for factor in base.factors[dim]]) for part in parts]
            return Layout(tuple(dims), base.offset)

        return self.derive(fuse)

    def unflattened(self, dim: int, sizes: Sequence[int]) -> Self:
        """Cut one dim into `sizes`, outermost first."""
        shape = (*self.shape[:dim], *sizes, *self.shape[dim + 1 :])
        if self.table is not None:
            return self.of_ranks(self.table, shape)
        pieces: list[Factors] = []
        rest: Factors = self.factors[dim]
        for size in reversed(sizes):
            cut = split(rest, size)
            if cut is None:
                return self.of_ranks(self.values(), shape)
            rest, piece = cut
            pieces.insert(0, piece)
        return type(self)((*self.factors[:dim], *pieces, *self.factors[dim + 1 :]), self.offset)

    def ascending(self, dims: Iterable[int], place: int | None = None) -> Ranks:
        """Return the ranks along `dims` through one place, ascending."""
        if self.table is None:
            return Ranks(self.by_stride(dims), self.offset if place is None else place)
        return Ranks.of(sorted(self.ranks(dims, place)))

    def by_stride(self, dims: Iterable[int]) -> Factors:
        """Return the factors of `dims` from the largest stride to the smallest."""
        flat = [factor for dim in dims for factor in self.factors[dim]]
        return merged(sorted(flat, key=lambda factor: -factor[1]))

    @classmethod
    def stacked(cls, layouts: Sequence[Layout]) -> Layout | None:
        """Put layouts of one shape along a new outermost dim. Returns None when they share a rank."""
        first = layouts[0]
        step = layouts[1].offset - first.offset if len(layouts) > 1 else 1
        outer = merged([(len(layouts), step)])
        flat = [*outer, *(factor for dim in first.factors for factor in dim)]
        even = all(
            layout.table is None and layout.factors == first.factors and layout.offset == first.offset + i * step
            for i, layout in enumerate(layouts)
        )
        if even and nested(flat):
            return cls((outer, *first.factors), first.offset)
        ranks = [rank for layout in layouts for rank in layout.ranks()]
        return cls.of_ranks(ranks, (len(layouts), *first.shape)) if len(set(ranks)) == len(ranks) else None
