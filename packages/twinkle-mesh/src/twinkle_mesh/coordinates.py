"""Ranks, coordinates and groups of a mesh."""

from __future__ import annotations

from .attributes import Attributes
from .context import running_rank
from .layout.ranks import Groups, Ranks
from .rules.checks import whole_number
from .rules.messages import would

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Dims = str | Sequence[str]

_PARALLEL_DIMS = ("fsdp", "pp", "dp", "cp", "tp", "dp_replicate", "dp_shard", "ep_shard", "ep", "etp")


class Coordinates(Attributes):
    """Ranks by coordinate, coordinates by rank, and the groups along dims."""

    __slots__ = ()

    def __contains__(self, rank: object) -> bool:
        try:
            return self._layout.coords(whole_number("rank", rank)) is not None
        except ValueError:
            return False

    def coordinate(self, rank: int | None = None) -> dict[str, int]:
        """Return the coordinate of a rank in every dim; None is the rank of the running worker.

        Raises:
            ValueError: for a rank that is not in the mesh, here and wherever a rank is asked for.
        """
        return dict(zip(self.dim_names, self._coords(rank), strict=True))

    def rank_at(self, **coords: int) -> int:
        """Return the rank at the given coordinates; dims of size 1 can be left out.

        Raises:
            ValueError: for an unknown dim, a coordinate outside it, or a dim that is needed and missing.
        """
        places = self._given_coords(coords)
        for name, place, size in zip(self.dim_names, places, self.shape, strict=True):
            if place is None and size > 1:
                raise ValueError(f"rank_at needs {name}= as well, in [0, {size - 1}]; the dims are {self._sizes()}")
        return self._layout.rank([place or 0 for place in places])

    def group(self, dims: Dims, rank: int | None = None) -> Ranks:
        """Return the ranks that differ from `rank` only in `dims`, in the mesh's order of dims.

        Args:
            dims: The name of a dim or view, or several. A parallel dim that the mesh does not have counts as size 1.
            rank: Any rank of the group; None is the rank of the running worker.
        """
        chosen = self._dims_in(dims)
        coords = self._coords(rank)
        for dim in chosen:
            coords[dim] = 0
        return self._layout.ranks(chosen, self._layout.place(coords))

    def groups(self, dims: Dims) -> Groups:
        """Return every group along `dims`, ascending by first rank. A group is computed when it is read."""
        chosen = self._dims_in(dims)
        others = [dim for dim in range(len(self.shape)) if dim not in chosen]
        return Groups(self._layout.ascending(others), lambda start: self.group(dims, start))

    def _coords(self, rank: int | None) -> list[int]:
        if rank is None:
            rank = running_rank(self.world_size, lambda: self.ranks[0], lambda: self._layout.highest)
        elif type(rank) is not int:
            rank = whole_number("rank", rank)
        coords = self._layout.coords(rank)
        if coords is None:
            raise ValueError(f"rank={rank} is not in the mesh, whose ranks are {self.ranks!r}")
        return coords

    def _given_coords(self, coords: Mapping[str, int]) -> list[int | None]:
        places: list[int | None] = [None] * len(self.dim_names)
        for name, value in coords.items():
            dim = self._dim(name)
            place = whole_number(name, value)
            if not 0 <= place < self.shape[dim]:
                raise ValueError(f"{name}={place} is outside [0, {self.shape[dim] - 1}]; the dims are {self._sizes()}")
            places[dim] = place
        return places

    def _parts(self, name: str) -> tuple[int, ...]:
        """Return the dims of a view, or the one dim of that name."""
        for view, parts in self.views:
            if view == name:
                return tuple([self.dim_names.index(part) for part in parts])
        if name not in self.dim_names:
            options = map(repr, (*self.dim_names, *(view for view, _ in self.views)))
            raise ValueError(f"the mesh has no dim or view {name!r}; {would(options)}")
        return (self.dim_names.index(name),)

    def _dims_in(self, dims: Dims) -> list[int]:
        if isinstance(dims, str):
            dims = (dims,)
        chosen: set[int] = set()
        for name in dims:
            if name in self.dim_names:
                chosen.add(self.dim_names.index(name))
            elif name not in _PARALLEL_DIMS or self.size(name) > 1:
                chosen.update(self._parts(name))
        return sorted(chosen)
