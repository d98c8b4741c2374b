"""Meshes out of meshes."""

from __future__ import annotations

from .data import DataParallel
from .layout import Layout
from .lookup import data_order
from .sizes import check_names, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from .lookup import Dims, Views
    from .nodes import Nodes


class Algebra(DataParallel):
    """Operations that return a new mesh.

    Data ranks, ulysses, experts, virtual stages, sequence parallelism and views follow their dims into the new mesh;
    what needs a dim that is gone is gone as well.
    """

    __slots__ = ()

    def submesh(self, dims: Dims, rank: int | None = None) -> Self:
        """Return the mesh of `dims` that holds `rank`: `mesh.submesh(("dp", "tp"), 5)`.

        Args:
            dims: Names of dims or views, in the order that the new mesh is to have; a view becomes a dim.
            rank: Any rank of the new mesh; None stands for the running worker's rank.
        """
        names = check_names((dims,) if isinstance(dims, str) else dims)
        parts = [self._parts(name) for name in names]
        flat = [dim for part in parts for dim in part]
        if len(set(flat)) != len(flat):
            raise ValueError(f"dims={names} name a dim both as itself and in a view; each dim can stand in one place")
        layout = self._layout.through(flat, self._coords(rank))
        if len(flat) > len(parts):
            starts = [sum(map(len, parts[:count])) for count in range(len(parts))]
            layout = layout.fused([range(start, start + len(part)) for start, part in zip(starts, parts, strict=True)])
        origins = {name: [self.dim_names[dim] for dim in part] for name, part in zip(names, parts, strict=True)}
        return self._derived(layout, origins)

    def __getitem__(self, dims: Dims) -> Self:
        """Return the submesh that holds the mesh's first rank: `mesh["dp", "tp"]`."""
        return self.submesh(dims, self.ranks[0])

    def at(self, **coords: int) -> Self:
        """Return the mesh of the other dims at the given coordinates: `mesh.at(pp=1)`."""
        places = self._places(coords)
        kept = [dim for dim, place in enumerate(places) if place is None]
        layout = self._layout.through(kept, [place or 0 for place in places])
        return self._derived(layout, {name: [name] for name in [self.dim_names[dim] for dim in kept]})

    def flatten(self, dims: Dims | None = None, name: str | None = None) -> Self:
        """Join dims into one, row-major as listed, at the place of the first: `mesh.flatten(("dp", "cp"))`.

        Args:
            dims: Names of dims; all of them when None.
            name: The new dim's name; the old ones joined by "_" when None.
        """
        joined = check_names(self.dim_names if dims is None else (dims,) if isinstance(dims, str) else dims)
        if not joined:
            raise ValueError(f"flatten needs at least one dim; the dims are {self._sizes()}")
        new = "_".join(joined) if name is None else name
        first = min(self._dim(dim) for dim in joined)
        origins: dict[str, list[str]] = {}
        for dim, old in enumerate(self.dim_names):
            if dim == first:
                origins[new] = list(joined)
            elif old not in joined:
                if old == new:
                    raise ValueError(f"name={new!r} is the name of a dim that stays; dim names must differ")
                origins[old] = [old]
        return self._derived(self._layout.fused([[self._dim(dim) for dim in old] for old in origins.values()]), origins)

    def unflatten(self, dim: str, sizes: Mapping[str, int]) -> Self:
        """Cut a dim into several, outermost first: `mesh.unflatten("dp", {"dp_replicate": 2, "dp_shard": -1})`.

        Raises:
            ValueError: when the sizes, of which one may be -1, do not multiply to the dim's size.
        """
        place = self._dim(dim)
        new = _filled(dim, self.shape[place], sizes)
        names = (*self.dim_names[:place], *new, *self.dim_names[place + 1 :])
        swap = {dim: tuple(new)}
        return self._rebuilt(self._layout.divided(place, list(new.values())), names, *self._renamed(swap))

    def rename(self, names: Mapping[str, str] | None = None, /, **more: str) -> Self:
        """Give dims new names: `mesh.rename(dp="replica")`, or by a mapping from old to new."""
        new = {**(names or {}), **more}
        for old in new:
            self._dim(old)
        swap = {old: (name,) for old, name in new.items()}
        return self._rebuilt(
            self._layout, tuple([new.get(name, name) for name in self.dim_names]), *self._renamed(swap)
        )

    def transpose(self, *dims: str) -> Self:
        """Reorder the dims, or reverse them when none are named; every rank keeps its coordinates."""
        wanted = check_names(dims) or self.dim_names[::-1]
        indices = [self._dim(name) for name in wanted]
        if len(indices) != len(self.dim_names):
            missing = [name for name in self.dim_names if name not in wanted]
            raise ValueError(f"transpose{wanted} leaves out {missing}; name every dim once")
        layout = self._layout.derive(lambda base: Layout(tuple([base.factors[i] for i in indices]), base.offset))
        return self._rebuilt(layout, wanted, self.data_dims, self.views)

    def concat(self, *others: Self, dim: str) -> Self:
        """Put meshes of equal shapes and disjoint ranks one after the other: `a.concat(b, dim="dp")`.

        Args:
            others: Meshes that differ from this one in their ranks only.
            dim: A dim that they have, which grows, or a new one, which becomes the outermost.
        """
        meshes = (self, *others)
        for other in others:
            if other.shape != self.shape or other._traits() != self._traits():
                raise ValueError(f"concat needs meshes that differ in their ranks only, not {self!r} and {other!r}")
        layout = Layout.stacked([mesh._layout for mesh in meshes])
        if layout is None:
            shared = next(rank for mesh in meshes for rank in mesh.ranks if sum(rank in each for each in meshes) > 1)
            raise ValueError(
                f"concat needs disjoint ranks, but rank {shared} is in several of the {len(meshes)} meshes"
            )
        names, data = self.dim_names, self.data_dims
        if dim in names:
            at = names.index(dim)
            layout = layout.fused([[0, at + 1] if part == at else [part + 1] for part in range(len(names))])
        else:
            names = (dim, *names)
            data = data_order((dim, *data)) if data_order((dim,)) else data
        return type(self)(
            layout,
            names,
            device_type=self.device_type,
            ulysses_size=self.ulysses_size,
            ep_size=self.ep_size,
            etp_size=self._etp,
            vpp_size=self.vpp_size,
            sequence_parallel=self.sequence_parallel,
            expert_order=self.expert_order,
            views=self.views,
            data_dims=data,
            nodes=self.nodes,
        )

    def with_views(self, **views: Dims) -> Self:
        """Add names for flattened dims, readable as `mesh["dp"]`: `with_views(dp=("dp_replicate", "dp_shard"))`."""
        more = tuple([(name, (dims,) if isinstance(dims, str) else tuple(dims)) for name, dims in views.items()])
        return self._rebuilt(self._layout, self.dim_names, self.data_dims, (*self.views, *more))

    def _renamed(self, swap: Mapping[str, tuple[str, ...]]) -> tuple[tuple[str, ...], Views]:
        """Return data dims and views with some names exchanged for others."""

        def exchange(names: tuple[str, ...]) -> tuple[str, ...]:
            return tuple([new for old in names for new in swap.get(old, (old,))])

        return exchange(self.data_dims), tuple([(view, exchange(parts)) for view, parts in self.views])

    def _derived(self, layout: Layout, origins: Mapping[str, list[str]]) -> Self:
        """Build the mesh of dims that stand for old ones; a dim of data dims only is a data dim."""
        data = [name for name, old in origins.items() if all(dim in self.data_dims for dim in old)]
        data.sort(key=lambda name: self.data_dims.index(origins[name][0]))
        views = tuple(
            [
                (view, parts)
                for view, parts in self.views
                if view not in origins and all(origins.get(part) == [part] for part in parts)
            ]
        )
        return self._rebuilt(layout, tuple(origins), tuple(data), views)

    def _rebuilt(
        self,
        layout: Layout,
        names: tuple[str, ...],
        data: tuple[str, ...],
        views: Views,
        nodes: Nodes | None = None,
    ) -> Self:
        """Build a mesh with this one's attributes, as far as their dims are still there."""
        sizes = dict(zip(names, layout.shape, strict=True))
        shares = 1
        for name in data:
            shares *= sizes[name]
        pp, tp = sizes.get("pp", 1), sizes.get("tp", 1)
        same_stage = layout.size // pp == self.world_size // self.pp_size
        experts = same_stage and (self.ep_size > 1 or self._etp is not None)
        return type(self)(
            layout,
            names,
            device_type=self.device_type,
            ulysses_size=self.ulysses_size if shares == self.data_world_size * self.ulysses_size else 1,
            ep_size=self.ep_size if experts else 1,
            etp_size=self.etp_size if experts else None,
            vpp_size=self.vpp_size if pp == self.pp_size else 1,
            sequence_parallel=self.sequence_parallel and tp == self.tp_size,
            expert_order=self.expert_order if same_stage else None,
            views=views,
            data_dims=data,
            nodes=nodes or self.nodes,
        )


def _filled(dim: str, total: int, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes that `dim` is cut into, with a -1 inferred."""
    known = 1
    open_names: list[str] = []
    filled: dict[str, int] = {}
    for name, given in sizes.items():
        size = whole(name, given)
        if size == -1:
            open_names.append(name)
        elif size < 1:
            raise ValueError(f"{name}={size} must be at least 1, or -1 to infer it; 1 would")
        else:
            known *= size
        filled[name] = size
    if len(open_names) > 1:
        raise ValueError(f"{' and '.join(f'{name}=-1' for name in open_names)}: only one size can be inferred")
    if total % known or (known != total and not open_names) or not filled:
        listed = " * ".join(f"{name}={size}" for name, size in filled.items() if size != -1) or "no sizes"
        raise ValueError(
            f"{listed} = {known} does not make up {dim}_size={total}; sizes that multiply to {total} would"
        )
    filled.update(dict.fromkeys(open_names, total // known))
    return filled
