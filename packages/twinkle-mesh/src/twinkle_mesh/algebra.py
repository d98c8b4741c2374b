"""Operations that make a mesh from a mesh."""

from __future__ import annotations

from .attributes import check_alike
from .data_parallel import DataParallel
from .derived import rebuilt, selected, siblings, views_renamed, views_within
from .layout.data_dims import DATA_DIMS, SAME_DATA
from .layout.data_layout import DataLayout
from .layout.layout import Layout
from .rules.checks import check_names
from .rules.sizes import fill_sizes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from .coordinates import Dims


_set = object.__setattr__


class Algebra(DataParallel):
    """Operations that return a new mesh.

    Each rank sees the same samples as before. Where ranks are left out, the data ranks are numbered anew from 0.

    Only a new name can change what a rank sees. A dim that `rename` or `unflatten` names dp_replicate, dp, dp_shard or
    fsdp splits the data. Ranks along a dim that gets the name pp, cp, tp, ep or etp see the same samples; a warning
    says how many data ranks are lost.

    Ulysses, experts, virtual stages, sequence parallelism and views stay where their dims stay, and are dropped where
    a dim that they need is dropped.
    """

    __slots__ = ()

    def submesh(self, dims: Dims, rank: int | None = None) -> Self:
        """Return the mesh of `dims` that holds `rank`: `mesh.submesh(("dp", "tp"), 5)`.

        Args:
            dims: Names of dims or views, in the order that the new mesh is to have; a view becomes a dim.
            rank: Any rank of the new mesh; None is the rank of the running worker.
        """
        names = check_names((dims,) if isinstance(dims, str) else dims)
        parts = {name: self._parts(name) for name in names}
        flat = [dim for part in parts.values() for dim in part]
        if len(set(flat)) != len(flat):
            raise ValueError(f"dims={names} name a dim both as itself and in a view; each dim can stand in one place")
        return selected(self, parts, self._coords(rank))

    @property
    def siblings(self) -> tuple[Self, ...]:
        """The submeshes that the ranks of the whole mesh get by the same operations, this one too, by first rank."""
        return siblings(self)

    def __getitem__(self, dims: Dims) -> Self:
        """Return the submesh that holds the mesh's first rank: `mesh["dp", "tp"]`."""
        return self.submesh(dims, self.ranks[0])

    def at(self, **coords: int) -> Self:
        """Return the mesh of the other dims at the given coordinates: `mesh.at(pp=1)`."""
        places = self._given_coords(coords)
        kept = {self.dim_names[dim]: (dim,) for dim, place in enumerate(places) if place is None}
        return selected(self, kept, [place or 0 for place in places])

    def flatten(self, dims: Dims | None = None, name: str | None = None) -> Self:
        """Join dims into one, row-major as listed: `mesh.flatten(("dp", "cp"))`.

        The new dim stands where the first of the joined dims stood.

        Args:
            dims: Names of dims; all of them when None.
            name: The new dim's name; the old ones joined by "_" when None.
        """
        joined = check_names(self.dim_names if dims is None else (dims,) if isinstance(dims, str) else dims)
        if not joined:
            raise ValueError(f"flatten needs at least one dim; the dims are {self._sizes()}")
        new = "_".join(joined) if name is None else name
        first = min(self._dim(dim) for dim in joined)
        parts: dict[str, tuple[int, ...]] = {}
        for dim, old in enumerate(self.dim_names):
            if dim == first:
                parts[new] = tuple([self._dim(each) for each in joined])
            elif old not in joined:
                if old == new:
                    raise ValueError(f"name={new!r} is the name of a dim that stays; dim names must differ")
                parts[old] = (dim,)
        runs = list(parts.values())
        return rebuilt(
            self,
            self._layout.flattened(runs),
            tuple(parts),
            self._data_by_coordinate().flattened(runs),
            views=views_within(self, parts),
            fresh=[] if joined == (new,) else [new],
            splits=False,
        )

    def unflatten(self, dim: str, sizes: Mapping[str, int]) -> Self:
        """Cut a dim into several, outermost first: `mesh.unflatten("dp", {"dp_replicate": 2, "dp_shard": -1})`.

        Raises:
            ValueError: when the sizes, of which one may be -1, do not multiply to the dim's size.
        """
        place = self._dim(dim)
        new = fill_sizes(dim, self.shape[place], sizes)
        pieces = list(new.values())
        return rebuilt(
            self,
            self._layout.unflattened(place, pieces),
            (*self.dim_names[:place], *new, *self.dim_names[place + 1 :]),
            self._data_by_coordinate().unflattened(place, pieces),
            views=views_renamed(self, {dim: tuple(new)}),
            fresh=[name for name in new if name != dim or len(pieces) > 1],
        )

    def rename(self, names: Mapping[str, str] | None = None, /, **more: str) -> Self:
        """Give dims new names: `mesh.rename(dp="replica")` or `mesh.rename({"dp": "replica"})`.

        Attributes of a dim, such as `sequence_parallel` of tp, come back with its name.
        """
        new = {**(names or {}), **more}
        for old in new:
            self._dim(old)
        begun, was = self._renamed or (self, {name: name for name in self.dim_names})
        now = tuple([new.get(name, name) for name in self.dim_names])
        return rebuilt(
            self,
            self._layout,
            now,
            self._data_by_coordinate(),
            views=views_renamed(self, {old: (name,) for old, name in new.items()}),
            fresh=[name for old, name in new.items() if old != name],
            renamed=(begun, {new.get(name, name): old for name, old in was.items()}),
        )

    def transpose(self, *dims: str) -> Self:
        """Reorder the dims; without arguments, reverse them. Each rank keeps its coordinates."""
        wanted = check_names(dims) or self.dim_names[::-1]
        indices = [self._dim(name) for name in wanted]
        if len(indices) != len(self.dim_names):
            missing = [name for name in self.dim_names if name not in wanted]
            raise ValueError(f"transpose{wanted} leaves out {missing}; name every dim once")
        origin = [0] * len(indices)
        data = self._data_by_coordinate().select(indices, origin)
        return rebuilt(self, self._layout.select(indices, origin), wanted, data, views=self.views)

    def concat(self, *others: Self, dim: str) -> Self:
        """Put meshes of equal shapes and disjoint ranks one after the other: `a.concat(b, dim="dp")`.

        Meshes see different samples along a dim that splits the data. A new dim, or one of size 1, splits the data if
        its name is dp_replicate, dp, dp_shard or fsdp.

        Args:
            others: Meshes that differ from this one in their ranks only.
            dim: A dim of the meshes, which grows, or a new one, which becomes the outermost.
        """
        meshes = (self, *others)
        for other in others:
            check_alike(self, other)
        layout = Layout.stacked([mesh._layout for mesh in meshes])
        if layout is None:
            shared = next(rank for mesh in meshes for rank in mesh.ranks if sum(rank in each for each in meshes) > 1)
            raise ValueError(
                f"concat needs disjoint ranks, but rank {shared} is in several of the {len(meshes)} meshes"
            )
        names = self.dim_names
        at = names.index(dim) if dim in names else None
        held = [mesh._data_by_coordinate() for mesh in meshes]
        by_name = dim in DATA_DIMS and (at is None or self.shape[at] == 1)
        splits = by_name or (at is not None and held[0].step(at) > 0)
        if dim in SAME_DATA and any(data.key != held[0].key for data in held):
            raise ValueError(f"concat along {dim} needs meshes with the same data ranks, not {self!r} and {others!r}")
        data = DataLayout.concatenated(held, None if by_name else at, splits=splits, ulysses=self.ulysses_size)
        if at is None:
            names = (dim, *names)
        else:
            runs = [[0, part + 1] if part == at else [part + 1] for part in range(len(names))]
            layout, data = layout.flattened(runs), data.flattened(runs)
        grown = rebuilt(self, layout, names, data, views=self.views, fresh=[dim] if by_name else [])
        _set(grown, "_parts_of", ())
        return grown

    def with_views(self, **views: Dims) -> Self:
        """Add names for flattened dims, readable as `mesh["dp"]`: `with_views(dp=("dp_replicate", "dp_shard"))`."""
        more = tuple([(name, (dims,) if isinstance(dims, str) else tuple(dims)) for name, dims in views.items()])
        return rebuilt(self, self._layout, self.dim_names, self._data_by_coordinate(), views=(*self.views, *more))
