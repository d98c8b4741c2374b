"""Coordinates to positions in data order, by arithmetic."""

from __future__ import annotations

from itertools import product as coordinates

from .factors import merged
from .layout import Layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Self


class DataLayout(Layout):
    """The position in data order of each coordinate: 0, 1, 2, ...

    It is a layout whose values are positions instead of ranks. Along a factor of stride 0 the samples are the same.
    Ulysses peers have neighbouring positions: the data rank is `position // ulysses_size`.
    """

    __slots__ = ()

    @classmethod
    def of_dims(cls, shape: Sequence[int], data: Sequence[int]) -> Self:
        """Number the positions row-major over the dims `data`, outermost first."""
        strides: dict[int, int] = {}
        step = 1
        for dim in reversed(data):
            strides[dim] = step
            step *= shape[dim]
        return cls(tuple([merged([(size, strides.get(dim, 0))]) for dim, size in enumerate(shape)]))

    @staticmethod
    def is_sound(factors: Iterable[tuple[int, int]]) -> bool:
        """Tell whether the factors count every position from 0 on, without a gap."""
        reach = 1
        for size, stride in sorted(factors, key=lambda factor: factor[1]):
            if stride and stride != reach:
                return False
            reach *= size if stride else 1
        return True

    @property
    def count(self) -> int:
        """Number of positions."""
        if self.table is not None:
            return max(self.table) + 1
        total = 1
        for _, size, stride in self._digits_of(range(len(self.shape))):
            total *= size if stride else 1
        return total

    def dims_with_data(self) -> tuple[int, ...]:
        """Return the dims along which the position changes, those of the largest strides first."""
        if self.table is not None:
            origin = [0] * len(self.shape)
            return tuple(
                [dim for dim in range(len(self.shape)) if self._without_by_scan([dim], 1, origin)[0].key != self.key]
            )
        tops = [(max([stride for _, stride in factors], default=0), dim) for dim, factors in enumerate(self.factors)]
        return tuple([dim for top, dim in sorted(tops, key=lambda pair: -pair[0]) if top])

    def is_data_only(self, dim: int) -> bool:
        """Tell whether the position changes with every step along `dim`."""
        factors = self.factors[dim]
        return self.table is None and (not factors or (len(factors) == 1 and factors[0][1] > 0))

    def row_major_dims(self) -> tuple[int, ...] | None:
        """Return the dims over which the positions are row-major; None where only a part of a dim changes them."""
        held = self.dims_with_data()
        return held if self.table is None and all(map(self.is_data_only, held)) else None

    def without(self, dims: Sequence[int], ulysses: int, coords: Sequence[int] | None = None) -> tuple[DataLayout, int]:
        """Return new positions that no longer change along `dims`.

        Args:
            dims: Dims along which the samples are the same from now on.
            ulysses: How many neighbouring positions share their samples.
            coords: The coordinate of each dim at which `dims` are fixed; 0 when None.

        Returns:
            The positions, numbered from 0 on, and how many neighbours share their samples now.
        """
        if not set(dims) & set(self.dims_with_data()):
            return self, ulysses
        held = self._cut(ulysses)
        if held is None:
            return self._without_by_scan(dims, ulysses, [0] * len(self.shape) if coords is None else coords)
        strides: dict[int, int] = {}
        reach = peers = 1
        for stride, size in sorted([(stride, size) for dim, size, stride in held if stride and dim not in dims]):
            strides[stride] = reach
            reach *= size
            peers *= size if stride < ulysses else 1
        factors: list[list[tuple[int, int]]] = [[] for _ in self.shape]
        for dim, size, stride in held:
            factors[dim].append((size, strides[stride] if stride and dim not in dims else 0))
        return DataLayout(tuple(map(merged, factors))), peers

    def with_dims(self, dims: Sequence[int]) -> DataLayout:
        """Let further dims split the data. They become the outermost in data order, the first of them outside."""
        found = self
        for dim in reversed(dims):
            step, size = found.count, found.shape[dim]
            if found.table is None:
                factors = [merged([(size, step)]) if at == dim else held for at, held in enumerate(found.factors)]
                found = DataLayout(tuple(factors))
            else:
                places = coordinates(*map(range, found.shape))
                found = found.of_ranks([found.rank(place) + step * place[dim] for place in places], found.shape)
        return found

    def step(self, dim: int) -> int:
        """Return the difference of positions between one copy of `dim` and the next when `dim` grows by copies."""
        if self.table is not None:
            return self.count if dim in self.dims_with_data() else 0
        size, stride = self.factors[dim][0] if self.factors[dim] else (1, 0)
        return size * stride

    @classmethod
    def concatenated(
        cls, held: Sequence[DataLayout], continued: int | None, *, splits: bool, ulysses: int
    ) -> DataLayout:
        """Put the positions of several meshes along a new outermost dim.

        Args:
            held: The positions of each mesh.
            continued: The dim that grows by the new one; None to put the new one outside all others in data order.
            splits: Whether the meshes see different samples.
            ulysses: How many neighbouring positions share their samples, before and after.
        """
        first, times = held[0], len(held)
        if first.table is not None or any(data.key != first.key for data in held):
            values: list[int] = []
            start = 0
            for data in held:
                values += [start + place for place in data.values()]
                start += data.count if splits else 0
            return cls.of_ranks(values, (times, *first.shape))
        grown = first.count if continued is None else first.step(continued)
        step = 0 if not splits else grown if grown % ulysses == 0 else first.count
        scaled = [
            merged([(size, stride * times if step and stride >= step else stride) for size, stride in factors])
            for factors in first.factors
        ]
        return cls((merged([(times, step)]), *scaled), 0, None, (times, *first.shape))

    def common_factors(self, ranks: Layout) -> list[tuple[int, int, int, int]] | None:
        """Cut the factors of ranks and positions into common ones: (dim, size, rank stride, position stride).

        Returns None where no common factors exist.
        """
        if self.table is not None or ranks.table is not None:
            return None
        found: list[tuple[int, int, int, int]] = []
        for dim, (mine, theirs) in enumerate(zip(self.factors, ranks.factors, strict=True)):
            pieces: list[tuple[int, int, int, int]] = []
            rest = list(mine)
            for size, stride in reversed(theirs):
                while size > 1:
                    have, step = rest.pop()
                    inner = min(size, have)
                    if size % inner or have % inner:
                        return None
                    pieces.insert(0, (dim, inner, stride, step))
                    if have > inner:
                        rest.append((have // inner, step * inner))
                    size, stride = size // inner, stride * inner
            found += pieces
        return found

    def _digits_of(self, dims: Iterable[int]) -> list[tuple[int, int, int]]:
        return [(dim, size, stride) for dim in dims for size, stride in self.factors[dim]]

    def _cut(self, ulysses: int) -> list[tuple[int, int, int]] | None:
        """Return all factors as (dim, size, stride), cut between data ranks and ulysses peers; None where it fails."""
        if self.table is not None:
            return None
        held: list[tuple[int, int, int]] = []
        for dim, size, stride in self._digits_of(range(len(self.shape))):
            if not stride or stride >= ulysses or stride * size <= ulysses:
                held.append((dim, size, stride))
                continue
            peers = ulysses // stride
            if ulysses % stride or size % peers:
                return None
            held += [(dim, size // peers, ulysses), (dim, peers, stride)]
        return held

    def _without_by_scan(self, dims: Sequence[int], ulysses: int, coords: Sequence[int]) -> tuple[DataLayout, int]:
        """Do the same as `without` by a look at every coordinate."""
        seen: list[tuple[int, int]] = []
        for place in coordinates(*map(range, self.shape)):
            fixed = [coords[dim] if dim in dims else coord for dim, coord in enumerate(place)]
            seen.append(divmod(self.rank(fixed), ulysses))
        peers: dict[int, list[int]] = {}
        for share, peer in sorted(set(seen)):
            peers.setdefault(share, []).append(peer)
        shares = {share: index for index, share in enumerate(peers)}
        each = {len(held) for held in peers.values()}
        if len(each) > 1:
            return self.of_ranks([shares[share] for share, _ in seen], self.shape), 1
        most = each.pop()
        numbers = {
            (share, peer): index * most + inner
            for share, index in shares.items()
            for inner, peer in enumerate(peers[share])
        }
        return self.of_ranks([numbers[pair] for pair in seen], self.shape), most
