"""Meshes out of meshes."""

from __future__ import annotations

from .data_parallel import DataParallel
from .layout.data_dims import DATA_DIMS, SAME_DATA, follow_names
from .layout.data_layout import DataLayout
from .layout.layout import Layout
from .rules.sizes import check_names, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    from .coordinates import Dims, Views
    from .nodes import Nodes


class Algebra(DataParallel):
    """Operations that return a new mesh.

    Every rank of the new mesh sees the samples that it saw before; data ranks are numbered anew where ranks are left
    out. Only names change that: a dim that is renamed to dp_replicate, dp, dp_shard or fsdp, or cut out under such a
    name, splits the data, and one that becomes pp, cp, tp, ep or etp does not; a warning says which data ranks are
    lost. Ulysses, experts, virtual stages, sequence parallelism and views follow their dims; what needs a dim that is
    gone is gone as well.
    """

    __slots__ = ()

    def submesh(self, dims: Dims, rank: int | None = None) -> Self:
        """Return the mesh of `dims` that holds `rank`: `mesh.submesh(("dp", "tp"), 5)`.

        Args:
            dims: Names of dims or views, in the order that the new mesh is to have; a view becomes a dim.
            rank: Any rank of the new mesh; None stands for the running worker's rank.
        """
        names = check_names((dims,) if isinstance(dims, str) else dims)
        parts = {name: self._parts(name) for name in names}
        flat = [dim for part in parts.values() for dim in part]
        if len(set(flat)) != len(flat):
            raise ValueError(f"dims={names} name a dim both as itself and in a view; each dim can stand in one place")
        return self._selected(parts, self._coords(rank))

    def __getitem__(self, dims: Dims) -> Self:
        """Return the submesh that holds the mesh's first rank: `mesh["dp", "tp"]`."""
        return self.submesh(dims, self.ranks[0])

    def at(self, **coords: int) -> Self:
        """Return the mesh of the other dims at the given coordinates: `mesh.at(pp=1)`."""
        places = self._places(coords)
        kept = {self.dim_names[dim]: (dim,) for dim, place in enumerate(places) if place is None}
        return self._selected(kept, [place or 0 for place in places])

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
        parts: dict[str, tuple[int, ...]] = {}
        for dim, old in enumerate(self.dim_names):
            if dim == first:
                parts[new] = tuple([self._dim(each) for each in joined])
            elif old not in joined:
                if old == new:
                    raise ValueError(f"name={new!r} is the name of a dim that stays; dim names must differ")
                parts[old] = (dim,)
        runs = list(parts.values())
        return self._rebuilt(
            self._layout.fused(runs),
            tuple(parts),
            self._data_places_by_dim().fused(runs),
            views=self._views_within(parts),
            fresh=[] if joined == (new,) else [new],
            splits=False,
        )

    def unflatten(self, dim: str, sizes: Mapping[str, int]) -> Self:
        """Cut a dim into several, outermost first: `mesh.unflatten("dp", {"dp_replicate": 2, "dp_shard": -1})`.

        Raises:
            ValueError: when the sizes, of which one may be -1, do not multiply to the dim's size.
        """
        place = self._dim(dim)
        new = _filled(dim, self.shape[place], sizes)
        pieces = list(new.values())
        return self._rebuilt(
            self._layout.divided(place, pieces),
            (*self.dim_names[:place], *new, *self.dim_names[place + 1 :]),
            self._data_places_by_dim().divided(place, pieces),
            views=self._views_renamed({dim: tuple(new)}),
            fresh=[name for name in new if name != dim or len(pieces) > 1],
        )

    def rename(self, names: Mapping[str, str] | None = None, /, **more: str) -> Self:
        """Give dims new names: `mesh.rename(dp="replica")`, or by a mapping from old to new."""
        new = {**(names or {}), **more}
        for old in new:
            self._dim(old)
        return self._rebuilt(
            self._layout,
            tuple([new.get(name, name) for name in self.dim_names]),
            self._data_places_by_dim(),
            views=self._views_renamed({old: (name,) for old, name in new.items()}),
            fresh=[name for old, name in new.items() if old != name],
        )

    def transpose(self, *dims: str) -> Self:
        """Reorder the dims, or reverse them when none are named; every rank keeps its coordinates."""
        wanted = check_names(dims) or self.dim_names[::-1]
        indices = [self._dim(name) for name in wanted]
        if len(indices) != len(self.dim_names):
            missing = [name for name in self.dim_names if name not in wanted]
            raise ValueError(f"transpose{wanted} leaves out {missing}; name every dim once")
        origin = [0] * len(indices)
        data = self._data_places_by_dim().through(indices, origin)
        return self._rebuilt(self._layout.through(indices, origin), wanted, data, views=self.views)

    def concat(self, *others: Self, dim: str) -> Self:
        """Put meshes of equal shapes and disjoint ranks one after the other: `a.concat(b, dim="dp")`.

        Ranks of different meshes see different samples where `dim` splits the data at its outermost. A new dim, or one
        of size 1, splits the data where its name says so.

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
        names = self.dim_names
        at = names.index(dim) if dim in names else None
        held = [mesh._data_places_by_dim() for mesh in meshes]
        by_name = dim in DATA_DIMS and (at is None or self.shape[at] == 1)
        splits = by_name or (at is not None and held[0].step(at) > 0)
        if dim in SAME_DATA and any(data.key != held[0].key for data in held):
            raise ValueError(f"concat along {dim} needs meshes with the same data ranks, not {self!r} and {others!r}")
        data = DataLayout.of_meshes(held, None if by_name else at, splits=splits, ulysses=self.ulysses_size)
        if at is None:
            names = (dim, *names)
        else:
            runs = [[0, part + 1] if part == at else [part + 1] for part in range(len(names))]
            layout, data = layout.fused(runs), data.fused(runs)
        return self._rebuilt(layout, names, data, views=self.views, fresh=[dim] if by_name else [])

    def with_views(self, **views: Dims) -> Self:
        """Add names for flattened dims, readable as `mesh["dp"]`: `with_views(dp=("dp_replicate", "dp_shard"))`."""
        more = tuple([(name, (dims,) if isinstance(dims, str) else tuple(dims)) for name, dims in views.items()])
        return self._rebuilt(self._layout, self.dim_names, self._data_places_by_dim(), views=(*self.views, *more))

    def _on_nodes(self, nodes: Nodes) -> Self:
        return self._rebuilt(self._layout, self.dim_names, self._data_places_by_dim(), views=self.views, nodes=nodes)

    def _views_renamed(self, swap: Mapping[str, tuple[str, ...]]) -> Views:
        """Return the views with some names exchanged for others."""

        def exchange(names: tuple[str, ...]) -> tuple[str, ...]:
            return tuple([new for old in names for new in swap.get(old, (old,))])

        return tuple([(view, exchange(parts)) for view, parts in self.views])

    def _views_within(self, parts: Mapping[str, tuple[int, ...]]) -> Views:
        """Return the views whose dims all stay as they are."""
        stay = {name for name, part in parts.items() if [self.dim_names[dim] for dim in part] == [name]}
        return tuple([(view, dims) for view, dims in self.views if view not in parts and stay.issuperset(dims)])

    def _selected(self, parts: Mapping[str, tuple[int, ...]], coords: Sequence[int]) -> Self:
        """Keep the listed dims, each a run of old ones, with all others fixed at coordinates."""
        flat = [dim for part in parts.values() for dim in part]
        gone = [dim for dim in range(len(self.shape)) if dim not in flat]
        layout = self._layout.through(flat, coords)
        if self.ulysses_size == 1 and self._data_layout is None and len(flat) == len(parts):
            names = tuple([name for name in self.data_dims if name in parts])
            return self._rebuilt(layout, tuple(parts), names, views=self._views_within(parts))
        data, ulysses = self._data_places_by_dim().without(gone, self.ulysses_size, coords)
        data = data.through(flat, [0] * len(self.shape))
        joined = [name for name, part in parts.items() if len(part) > 1]
        if joined:
            starts = [sum(map(len, list(parts.values())[:count])) for count in range(len(parts))]
            runs = [range(start, start + len(part)) for start, part in zip(starts, parts.values(), strict=True)]
            layout, data = layout.fused(runs), data.fused(runs)
        return self._rebuilt(
            layout,
            tuple(parts),
            data,
            ulysses=ulysses,
            views=self._views_within(parts),
            fresh=[name for name in joined if name in SAME_DATA],
        )

    def _data_places_by_dim(self) -> DataLayout:
        return self._data_layout or DataLayout.of_dims(self.shape, self._data)

    def _rebuilt(
        self,
        layout: Layout,
        names: tuple[str, ...],
        data: DataLayout | tuple[str, ...],
        *,
        views: Views,
        ulysses: int | None = None,
        fresh: Sequence[str] = (),
        splits: bool = True,
        nodes: Nodes | None = None,
    ) -> Self:
        """Build a mesh with this one's attributes, as far as their dims are still there."""
        peers = self.ulysses_size if ulysses is None else ulysses
        if fresh:
            assert isinstance(data, DataLayout)
            check_names(names)
            before = data.count // peers
            data, peers = follow_names(data, peers, names, fresh, splits=splits)
            if data.count // peers < before:
                _warn_of_lost_data(fresh, before, data.count // peers)
        sizes = dict(zip(names, layout.shape, strict=True))
        pp, tp = sizes.get("pp", 1), sizes.get("tp", 1)
        same_stage = layout.size // pp == self.world_size // self.pp_size
        experts = same_stage and (self.ep_size > 1 or self._etp is not None)
        return type(self)(
            layout,
            names,
            device_type=self.device_type,
            ulysses_size=peers,
            ep_size=self.ep_size if experts else 1,
            etp_size=self.etp_size if experts else None,
            vpp_size=self.vpp_size if pp == self.pp_size else 1,
            sequence_parallel=self.sequence_parallel and tp == self.tp_size,
            expert_order=self.expert_order if experts or (same_stage and self._expert_order) else None,
            views=views,
            data_dims=data if isinstance(data, tuple) else None,
            data_layout=data if isinstance(data, DataLayout) else None,
            nodes=nodes or self.nodes,
        )


def _warn_of_lost_data(fresh: Sequence[str], before: int, after: int) -> None:
    import warnings

    taken = " and ".join([name for name in fresh if name in SAME_DATA])
    message = (
        f"ranks along {taken} see the same samples: data_world_size={before} becomes {after}; "
        "another name for the dim would keep their samples apart"
    )
    warnings.warn(message, stacklevel=4)


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
            raise ValueError(f"{name}={size} must be at least 1, or -1 to infer it")
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
