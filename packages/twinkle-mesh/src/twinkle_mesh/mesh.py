"""The device mesh: named dims over an arithmetic layout of ranks."""

from __future__ import annotations

from . import order as orders
from .context import running_rank
from .data import Slices, balanced_slice
from .layout import Layout, merged, split
from .ranks import Groups, Ranks
from .sizes import at_least_one, check_divides, check_names, infer, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import NoReturn, Self

    from .nodes import Nodes

    Dims = str | Sequence[str]

_DATA_DIMS = ("dp_replicate", "dp", "dp_shard", "fsdp")
_KNOWN_DIMS = ("fsdp", "pp", "dp", "cp", "tp", "dp_replicate", "dp_shard", "ep_shard", "ep", "etp")
_set = object.__setattr__


class DeviceMesh:
    """An immutable, hashable description of how ranks are laid out over named parallel dims.

    Build one with `from_sizes` or `from_ranks`. Nothing about a mesh grows with the number of ranks, unless the ranks
    were given one by one and follow no rule.
    """

    __slots__ = (
        "_data",
        "_etp",
        "_expert_order",
        "_hash",
        "_layout",
        "data_dims",
        "device_type",
        "dim_names",
        "ep_size",
        "nodes",
        "sequence_parallel",
        "ulysses_size",
        "views",
        "vpp_size",
    )

    dim_names: tuple[str, ...]
    device_type: str
    ulysses_size: int
    ep_size: int
    vpp_size: int
    sequence_parallel: bool
    views: tuple[tuple[str, tuple[str, ...]], ...]
    data_dims: tuple[str, ...]
    nodes: Nodes | None
    _layout: Layout
    _etp: int | None
    _expert_order: tuple[str, ...] | None
    _data: tuple[int, ...]
    _hash: int | None

    def __init__(
        self,
        layout: Layout,
        dim_names: Iterable[str],
        *,
        device_type: str = "cuda",
        ulysses_size: int | None = None,
        ep_size: int | None = None,
        etp_size: int | None = None,
        vpp_size: int | None = None,
        sequence_parallel: bool = False,
        expert_order: tuple[str, ...] | None = None,
        views: tuple[tuple[str, tuple[str, ...]], ...] = (),
        data_dims: tuple[str, ...] | None = None,
        nodes: Nodes | None = None,
    ) -> None:
        names = check_names(dim_names)
        if len(names) != len(layout.shape):
            raise ValueError(
                f"dim_names={names} names {len(names)} dims, but the ranks have {len(layout.shape)} "
                f"(shape {layout.shape}); {len(layout.shape)} names would"
            )
        if data_dims is None:
            data_dims = tuple([name for name in _DATA_DIMS if name in names])
        _set(self, "_layout", layout)
        _set(self, "dim_names", names)
        _set(self, "device_type", _device_type(device_type))
        _set(self, "ulysses_size", 1 if ulysses_size is None else at_least_one("ulysses_size", ulysses_size))
        _set(self, "ep_size", 1 if ep_size is None else at_least_one("ep_size", ep_size))
        _set(self, "vpp_size", 1 if vpp_size is None else at_least_one("vpp_size", vpp_size))
        _set(self, "sequence_parallel", bool(sequence_parallel))
        _set(self, "views", views)
        _set(self, "data_dims", data_dims)
        _set(self, "nodes", nodes)
        _set(self, "_data", tuple([names.index(name) for name in data_dims]))
        _set(self, "_hash", None)
        etp = None if etp_size is None else at_least_one("etp_size", etp_size)
        _set(self, "_etp", None if etp == self.size("tp") else etp)
        if expert_order is not None and (self.ep_size == 1 or expert_order == self._inferred_expert_order()):
            expert_order = None
        _set(self, "_expert_order", expert_order)
        self._check()

    def _check(self) -> None:
        if self.ulysses_size > 1:
            check_divides("ulysses_size", self.ulysses_size, _times(self.data_dims), self._data_size())
        if self.ep_size > 1 or self._etp is not None:
            dense = self.world_size // self.size("pp")
            etp = self.etp_size
            named = "the dense world (world_size / pp_size)"
            check_divides("etp_size", etp, named, dense)
            check_divides("ep_size", self.ep_size, f"{named} / etp_size", dense, times=etp)
        if self.vpp_size > 1 and self.size("pp") == 1:
            raise ValueError(f"vpp_size={self.vpp_size} needs pp_size > 1, but pp_size=1; vpp_size=1 would")
        if self.sequence_parallel and self.size("tp") == 1:
            raise ValueError(
                "sequence_parallel=True needs tp_size > 1, but tp_size=1; sequence_parallel=False would"
            )

    @classmethod
    def from_sizes(
        cls,
        *,
        world_size: int | None = None,
        dp_size: int | None = None,
        fsdp_size: int | None = None,
        tp_size: int | None = None,
        pp_size: int | None = None,
        ulysses_size: int | None = None,
        cp_size: int | None = None,
        ep_size: int | None = None,
        etp_size: int | None = None,
        vpp_size: int | None = None,
        device_type: str = "cuda",
        sequence_parallel: bool = False,
        order: str | None = None,
    ) -> Self:
        """Build a mesh of ranks 0 to world_size - 1 from the sizes of its dims.

        Args:
            world_size: Number of ranks; the product of the sizes when None (or 1 while the sizes multiply to more).
            dp_size: Data parallel replicas. Inferred from `world_size` when left out, as is the one size that is -1.
            fsdp_size: Fully sharded data parallel ranks.
            tp_size: Tensor parallel ranks.
            pp_size: Pipeline stages.
            ulysses_size: Ranks among dp*fsdp that share their samples and split the sequence; not a dim.
            cp_size: Context parallel ranks.
            ep_size: Expert parallel ranks; see `expert`.
            etp_size: Tensor parallel ranks of the experts; `tp_size` when None, as in Megatron.
            vpp_size: Virtual stages per pipeline rank; needs `pp_size` > 1.
            device_type: torch's name of the device: "cuda", "cpu", "npu", ...
            sequence_parallel: Whether activations are split over tp; needs `tp_size` > 1.
            order: Dims innermost first in Megatron's spelling, such as "tp-cp-ep-dp-pp". The default, outermost first,
                is fsdp, pp, dp, cp, tp.

        Raises:
            ValueError: naming the size, the rule, the values and the nearest sizes that would do.
        """
        sizes = infer(
            {"fsdp": fsdp_size, "pp": pp_size, "dp": dp_size, "cp": cp_size, "tp": tp_size}, world_size
        )
        experts = None
        dims: Sequence[str] = orders.DEFAULT
        if order is not None:
            ep = 1 if ep_size is None else at_least_one("ep_size", ep_size)
            dims, experts = orders.parse(order, ep, [name for name, size in sizes.items() if size > 1])
        names = [name for name in dims if name in sizes]
        return cls(
            Layout.contiguous([sizes[name] for name in names]),
            names,
            device_type=device_type,
            ulysses_size=ulysses_size,
            ep_size=ep_size,
            etp_size=etp_size,
            vpp_size=vpp_size,
            sequence_parallel=sequence_parallel,
            expert_order=experts,
        )

    @classmethod
    def from_ranks(
        cls,
        ranks: object,
        dim_names: Dims,
        *,
        device_type: str = "cuda",
        ulysses_size: int | None = None,
        ep_size: int | None = None,
        etp_size: int | None = None,
        vpp_size: int | None = None,
        sequence_parallel: bool = False,
    ) -> Self:
        """Build a mesh from explicit ranks: a nested sequence or an array, one dim for each name.

        Raises:
            ValueError: for ragged, repeated, negative or missing ranks, and whatever `from_sizes` refuses.
        """
        names = (dim_names,) if isinstance(dim_names, str) else tuple(dim_names)
        flat, shape = _flat(ranks)
        if len(set(flat)) != len(flat):
            twice = next(rank for rank in flat if flat.count(rank) > 1)
            raise ValueError(
                f"ranks holds {twice} {flat.count(twice)} times; every rank may stand in a mesh once"
            )
        if min(flat) < 0:
            raise ValueError(f"ranks holds {min(flat)}; ranks must be at least 0")
        return cls(
            Layout.of_ranks(flat, shape),
            names,
            device_type=device_type,
            ulysses_size=ulysses_size,
            ep_size=ep_size,
            etp_size=etp_size,
            vpp_size=vpp_size,
            sequence_parallel=sequence_parallel,
        )

    # Reading

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of each dim, in the order of `dim_names`."""
        return self._layout.shape

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._layout.size

    @property
    def ranks(self) -> Ranks:
        """All ranks in row-major order of the dims, computed as they are read."""
        return self._layout.ranks()

    @property
    def is_regular(self) -> bool:
        """Whether the ranks follow an arithmetic rule, so that no map of them is kept."""
        return self._layout.table is None

    def has_dim(self, dim: str) -> bool:
        """Tell whether `dim` is one of `dim_names` (views are not)."""
        return dim in self.dim_names

    def size(self, dim: str) -> int:
        """Return the size of a dim or view: 1 for one that the mesh does not have."""
        names = self.dim_names
        if dim in names:
            return self._layout.shape[names.index(dim)]
        for name, parts in self.views:
            if name == dim:
                total = 1
                for part in parts:
                    total *= self._layout.shape[names.index(part)]
                return total
        return 1

    @property
    def dp_size(self) -> int:
        """Size of the dp dim (or view)."""
        return self.size("dp")

    @property
    def fsdp_size(self) -> int:
        """Size of the fsdp dim."""
        return self.size("fsdp")

    @property
    def tp_size(self) -> int:
        """Size of the tp dim."""
        return self.size("tp")

    @property
    def pp_size(self) -> int:
        """Size of the pp dim."""
        return self.size("pp")

    @property
    def cp_size(self) -> int:
        """Size of the cp dim."""
        return self.size("cp")

    @property
    def etp_size(self) -> int:
        """Tensor parallel ranks of the experts: what was given, or tp_size."""
        return self.size("tp") if self._etp is None else self._etp

    def __len__(self) -> int:
        return self.world_size

    def __contains__(self, rank: object) -> bool:
        return isinstance(rank, int) and self._layout.coords(rank) is not None

    def __iter__(self) -> Iterator[int]:
        return iter(self.ranks)

    # Lookup

    def coordinate(self, rank: int | None = None) -> dict[str, int]:
        """Return a rank's coordinate in every dim; None stands for the running worker's rank.

        Raises:
            ValueError: for a rank that is not in the mesh, here and wherever a rank is asked for.
        """
        return dict(zip(self.dim_names, self._coords(rank), strict=True))

    def rank_at(self, **coords: int) -> int:
        """Return the rank at the given coordinates; a dim that is left out has to be of size 1.

        Raises:
            ValueError: for an unknown dim, a coordinate outside it, or a dim that is needed and missing.
        """
        places = self._places(coords)
        for name, place, size in zip(self.dim_names, places, self.shape, strict=True):
            if place is None and size > 1:
                raise ValueError(
                    f"rank_at needs {name}= as well, in [0, {size - 1}]: the mesh has {self._sizes()}"
                )
        return self._layout.rank([place or 0 for place in places])

    def group(self, dims: Dims, rank: int | None = None) -> Ranks:
        """Return the ranks that differ from `rank` only in `dims`, in the mesh's order of dims.

        Args:
            dims: The name of a dim or view, or several. A parallel dim that the mesh does not have counts as size 1.
            rank: Any rank of the group.
        """
        coords = self._coords(rank)
        chosen = self._chosen(dims)
        for dim in chosen:
            coords[dim] = 0
        return self._layout.ranks(chosen, self._layout.place(coords))

    def groups(self, dims: Dims) -> Groups:
        """Return every group along `dims`, ascending by first rank, each made when it is read."""
        chosen = self._chosen(dims)
        others = [dim for dim in range(len(self.shape)) if dim not in chosen]
        layout = self._layout
        if layout.table is None:
            starts = Ranks(layout.by_stride(others), layout.offset)
        else:
            starts = Ranks.of(sorted(layout.ranks(others)))
        return Groups(starts, lambda start: self.group(dims, start))

    def _coords(self, rank: int | None) -> list[int]:
        if rank is None:
            rank = running_rank(self.world_size, lambda: self.ranks[0])
        elif type(rank) is not int:
            rank = whole("rank", rank)
        coords = self._layout.coords(rank)
        if coords is None:
            raise ValueError(f"rank={rank} is not in the mesh; its ranks are {self.ranks!r}")
        return coords

    def _places(self, coords: Mapping[str, int]) -> list[int | None]:
        places: list[int | None] = [None] * len(self.dim_names)
        for name, value in coords.items():
            dim = self._dim(name)
            place = whole(name, value)
            if not 0 <= place < self.shape[dim]:
                raise ValueError(
                    f"{name}={place} is outside [0, {self.shape[dim] - 1}]: {name} has size {self.shape[dim]}"
                )
            places[dim] = place
        return places

    def _dim(self, name: str) -> int:
        if name in self.dim_names:
            return self.dim_names.index(name)
        self._unknown(name, self.dim_names)

    def _unknown(self, name: object, options: Iterable[str]) -> NoReturn:
        from ._messages import would

        raise ValueError(f"the mesh has no dim {name!r}; {would(repr(option) for option in options)}")

    def _parts(self, name: str) -> tuple[int, ...]:
        """Return the dims behind a dim's or a view's name."""
        if name in self.dim_names:
            return (self.dim_names.index(name),)
        for view, parts in self.views:
            if view == name:
                return tuple([self.dim_names.index(part) for part in parts])
        self._unknown(name, (*self.dim_names, *(view for view, _ in self.views)))

    def _chosen(self, dims: Dims) -> list[int]:
        names = (dims,) if isinstance(dims, str) else dims
        chosen: set[int] = set()
        for name in names:
            if name not in _KNOWN_DIMS or self.size(name) > 1:
                chosen.update(self._parts(name))
        return sorted(chosen)

    def _sizes(self) -> str:
        return ", ".join(f"{name}={size}" for name, size in zip(self.dim_names, self.shape, strict=True))

    # Data parallelism

    def _data_size(self) -> int:
        total = 1
        for dim in self._data:
            total *= self._layout.shape[dim]
        return total

    @property
    def data_world_size(self) -> int:
        """How many different shares of a batch there are: dp * fsdp / ulysses."""
        return self._data_size() // self.ulysses_size

    def data_rank(self, rank: int | None = None) -> int:
        """Return which share of a batch a rank takes: (dp_rank * fsdp_size + fsdp_rank) // ulysses_size."""
        coords = self._coords(rank)
        shape = self._layout.shape
        place = 0
        for dim in self._data:
            place = place * shape[dim] + coords[dim]
        return place // self.ulysses_size

    def get_slice(self, total_length: int, rank: int | None = None) -> slice:
        """Return the rows of a batch that a rank takes, by the balanced split over the data ranks."""
        return balanced_slice(total_length, self.data_world_size, self.data_rank(rank))

    def data_slice(self, total_length: int, data_rank: int) -> slice:
        """Return the rows of a batch that a data rank takes."""
        size = self.data_world_size
        if not 0 <= data_rank < size:
            raise ValueError(f"data_rank={data_rank} is outside [0, {size - 1}]: data_world_size={size}")
        return balanced_slice(total_length, size, data_rank)

    def data_slices(self, total_length: int) -> Slices:
        """Return the rows that each data rank takes, in data order."""
        return Slices(total_length, self.data_world_size)

    def same_data(self, rank: int | None = None) -> Ranks:
        """Return the ranks that see the same samples as `rank`, itself included, ascending."""
        return self._holders(self.data_rank(rank), {})

    def _holders(self, data_rank: int, fixed: Mapping[int, int]) -> Ranks:
        """Return the ranks of one data rank, ascending, with some of the other coordinates fixed."""
        layout = self._layout
        free = [dim for dim in range(len(self.shape)) if dim not in self._data and dim not in fixed]
        coords = [fixed.get(dim, 0) for dim in range(len(self.shape))]
        if layout.table is None:
            data = merged([factor for dim in self._data for factor in layout.factors[dim]])
            cut = split(data, self.ulysses_size)
            if cut is not None:
                start = Ranks(cut[0], layout.place(coords))[data_rank]
                factors = sorted([*layout.by_stride(free), *cut[1]], key=lambda factor: -factor[1])
                return Ranks(merged(factors), start)
        held: list[int] = []
        for place in range(data_rank * self.ulysses_size, (data_rank + 1) * self.ulysses_size):
            for dim in reversed(self._data):
                place, coords[dim] = divmod(place, layout.shape[dim])
            held += layout.ranks(free, layout.place(coords))
        return Ranks.of(sorted(held))

    def _stage(self, stage: int) -> dict[int, int]:
        return {self.dim_names.index("pp"): stage} if "pp" in self.dim_names else {}

    @property
    def pp_first_ranks(self) -> Ranks:
        """The ranks of the first pipeline stage, ascending; all of them without pp."""
        return self._stage_ranks(0)

    @property
    def pp_last_ranks(self) -> Ranks:
        """The ranks of the last pipeline stage, ascending; all of them without pp."""
        return self._stage_ranks(self.pp_size - 1)

    def _stage_ranks(self, stage: int) -> Ranks:
        fixed = self._stage(stage)
        layout = self._layout
        free = [dim for dim in range(len(self.shape)) if dim not in fixed]
        start = layout.place([fixed.get(dim, 0) for dim in range(len(self.shape))])
        if layout.table is None:
            return Ranks(layout.by_stride(free), start)
        return Ranks.of(sorted(layout.ranks(free, start)))

    @property
    def collect_ranks(self) -> Ranks:
        """One rank per data rank, in data order: the lowest on the last pipeline stage."""
        fixed = self._stage(self.pp_size - 1)
        layout = self._layout
        if layout.table is None:
            data = merged([factor for dim in self._data for factor in layout.factors[dim]])
            cut = split(data, self.ulysses_size)
            if cut is not None:
                start = layout.place([fixed.get(dim, 0) for dim in range(len(self.shape))])
                return Ranks(cut[0], start)
        return Ranks.of([self._holders(place, fixed)[0] for place in range(self.data_world_size)])

    # Algebra

    def submesh(self, dims: Dims, rank: int | None = None) -> Self:
        """Return the mesh of `dims`, in the given order, that holds `rank`; the other coordinates stay as they are there."""
        names = (dims,) if isinstance(dims, str) else tuple(dims)
        parts = [self._parts(name) for name in check_names(names)]
        flat = [dim for part in parts for dim in part]
        if len(set(flat)) != len(flat):
            raise ValueError(f"dims={names} name a dim twice, once through a view; name each dim once")
        through = self._layout.through(flat, self._coords(rank))
        runs: list[list[int]] = []
        for part in parts:
            first = sum(map(len, runs))
            runs.append(list(range(first, first + len(part))))
        traces = dict(zip(names, [[self.dim_names[dim] for dim in part] for part in parts], strict=True))
        return self._derived(through.fused(runs), names, traces)

    def __getitem__(self, dims: Dims) -> Self:
        """Return the submesh of one or several dims that holds the mesh's first rank."""
        return self.submesh(dims, self._layout.rank([0] * len(self.shape)))

    def at(self, **coords: int) -> Self:
        """Return the mesh of the other dims at the given coordinates."""
        places = self._places(coords)
        kept = [dim for dim, place in enumerate(places) if place is None]
        names = tuple([self.dim_names[dim] for dim in kept])
        return self._derived(self._layout.through(kept, [place or 0 for place in places]), names)

    def flatten(self, dims: Dims | None = None, name: str | None = None) -> Self:
        """Join dims into one, row-major in the given order, at the place of the first of them.

        Args:
            dims: Two or more dims; all of them when None.
            name: The new dim's name; the old names joined by "_" when None.
        """
        joined = check_names(self.dim_names if dims is None else (dims,) if isinstance(dims, str) else dims)
        if not joined:
            raise ValueError("flatten needs at least one dim")
        new = "_".join(joined) if name is None else name
        indices = [self._dim(dim) for dim in joined]
        parts: list[list[int]] = []
        names: list[str] = []
        for dim, old in enumerate(self.dim_names):
            if dim == min(indices):
                parts.append(indices)
                names.append(new)
            elif dim not in indices:
                parts.append([dim])
                names.append(old)
        return self._derived(self._layout.fused(parts), tuple(names), {new: list(joined)})

    def unflatten(self, dim: str, sizes: Mapping[str, int]) -> Self:
        """Cut a dim into several, outermost first; one size may be -1.

        Raises:
            ValueError: when the sizes do not multiply to the dim's size.
        """
        place = self._dim(dim)
        total = self.shape[place]
        new = {name: whole(name, size) for name, size in sizes.items()}
        known = 1
        for name, size in new.items():
            if size < 1 and size != -1:
                raise ValueError(f"{name}={size} must be at least 1, or -1 to infer it")
            known *= abs(size)
        open_names = [name for name, size in new.items() if size == -1]
        if len(open_names) > 1:
            raise ValueError(
                f"{' and '.join(f'{name}=-1' for name in open_names)}: only one size can be inferred"
            )
        if open_names and total % known == 0:
            new[open_names[0]] = total // known
        elif open_names or known != total:
            listed = " * ".join(f"{name}={size}" for name, size in new.items() if size != -1)
            raise ValueError(f"{listed} does not multiply to {dim}_size={total}")
        names = (*self.dim_names[:place], *new, *self.dim_names[place + 1 :])
        data = tuple([n for old in self.data_dims for n in (new if old == dim else (old,))])
        views = tuple(
            [
                (view, tuple([n for part in parts for n in (new if part == dim else (part,))]))
                for view, parts in self.views
            ]
        )
        return self._rebuilt(self._layout.divided(place, list(new.values())), names, data, views)

    def rename(self, names: Mapping[str, str] | None = None, /, **more: str) -> Self:
        """Give dims new names: `rename(dp="replica")`, or a mapping from old to new."""
        new = {**(names or {}), **more}
        for old in new:
            self._dim(old)
        data = tuple([new.get(name, name) for name in self.data_dims])
        views = tuple([(view, tuple([new.get(part, part) for part in parts])) for view, parts in self.views])
        return self._rebuilt(
            self._layout, tuple([new.get(name, name) for name in self.dim_names]), data, views
        )

    def transpose(self, *dims: str) -> Self:
        """Reorder the dims; reverse them when none are given. Every rank keeps its coordinates."""
        wanted = dims or self.dim_names[::-1]
        if sorted(wanted) != sorted(self.dim_names):
            raise ValueError(f"transpose{wanted} must name each of {self.dim_names} once")
        indices = [self._dim(name) for name in wanted]
        layout = self._layout.derive(
            lambda base: Layout(tuple([base.factors[i] for i in indices]), base.offset)
        )
        return self._rebuilt(layout, tuple(wanted), self.data_dims, self.views)

    def _derived(
        self, layout: Layout, names: tuple[str, ...], traces: Mapping[str, list[str]] | None = None
    ) -> Self:
        """Build the mesh of some of the dims; what depends on a dim that is gone goes with it.

        `traces` says which old dims a new name stands for.
        """
        came = {name: (traces or {}).get(name, [name]) for name in names}
        data: list[str] = []
        for name, old in came.items():
            if all(dim in self.data_dims for dim in old):
                data.append(name)
        data.sort(key=lambda name: self.data_dims.index(came[name][0]))
        views = tuple(
            [
                (view, parts)
                for view, parts in self.views
                if view not in names and all(part in names for part in parts)
            ]
        )
        return self._rebuilt(layout, names, tuple(data), views)

    def _rebuilt(
        self,
        layout: Layout,
        names: tuple[str, ...],
        data: tuple[str, ...],
        views: tuple[tuple[str, tuple[str, ...]], ...],
    ) -> Self:
        whole_world = layout.size == self.world_size
        pipelined = "pp" in names or self.size("pp") == 1
        tp = layout.shape[names.index("tp")] if "tp" in names else 1
        experts = whole_world and pipelined
        same_data = all(name in names for name in data) and _size_of(layout, names, data) == self._data_size()
        return type(self)(
            layout,
            names,
            device_type=self.device_type,
            ulysses_size=self.ulysses_size if same_data else 1,
            ep_size=self.ep_size if experts else 1,
            etp_size=(self.etp_size if self.ep_size > 1 else self._etp) if experts else None,
            vpp_size=self.vpp_size if "pp" in names else 1,
            sequence_parallel=self.sequence_parallel and tp > 1,
            expert_order=self._expert_order if experts else None,
            views=views,
            data_dims=data,
            nodes=self.nodes,
        )

    # Experts

    def _inferred_expert_order(self) -> tuple[str, ...]:
        names = self.dim_names
        shard = next((name for name in ("dp", *self.data_dims) if name in names), None)
        if shard is not None and "tp" in names and names.index("tp") < names.index(shard):
            return ("etp", "ep_shard", "ep")
        return orders.EXPERT_DIMS

    # Values

    def _state(self) -> tuple[object, ...]:
        return (
            self.dim_names,
            self._layout.key,
            self.device_type,
            self.ulysses_size,
            self.ep_size,
            self._etp,
            self.vpp_size,
            self.sequence_parallel,
            self._expert_order,
            self.views,
            self.data_dims,
            self.nodes,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeviceMesh):
            return NotImplemented
        return self is other or self._state() == other._state()

    def __hash__(self) -> int:
        if self._hash is None:
            _set(self, "_hash", hash(self._state()))
        assert self._hash is not None
        return self._hash

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a DeviceMesh does not change: {name} cannot be set; build another mesh")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a DeviceMesh does not change: {name} cannot be deleted")

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        from .codec import from_dict, to_dict

        return from_dict, (to_dict(self),)

    def to_dict(self) -> dict[str, object]:
        """Return the mesh as JSON values; `from_dict` gives an equal mesh back."""
        from .codec import to_dict

        return to_dict(self)

    @classmethod
    def from_dict(cls, state: Mapping[str, object]) -> DeviceMesh:
        """Build the mesh that `to_dict` described.

        Raises:
            ValueError: when the state is not one that `to_dict` returns.
        """
        from .codec import from_dict

        return from_dict(state)

    def __repr__(self) -> str:
        from .codec import text

        return text(self)


def _device_type(device_type: str) -> str:
    if device_type == "cuda":
        return device_type
    if not isinstance(device_type, str) or not device_type.strip():
        raise ValueError(
            f"device_type={device_type!r} must be torch's name of a device; 'cuda' or 'cpu' would"
        )
    kind = device_type.strip().lower()
    return "cuda" if kind == "gpu" else kind


def _times(names: Sequence[str]) -> str:
    return " * ".join(f"{name}_size" for name in names) or "data parallel ranks"


def _size_of(layout: Layout, names: Sequence[str], dims: Iterable[str]) -> int:
    total = 1
    for dim in dims:
        total *= layout.shape[names.index(dim)]
    return total


def _flat(ranks: object) -> tuple[list[int], tuple[int, ...]]:
    """Return nested ranks in row-major order and their shape."""
    nested: object = ranks.tolist() if hasattr(ranks, "tolist") else ranks
    level: list[object] = [nested]
    shape: list[int] = []
    while not all(isinstance(item, int) for item in level):
        children: list[object] = []
        for item in level:
            if not hasattr(item, "__iter__") or isinstance(item, str):
                whole("ranks", item)
                raise ValueError(
                    f"ranks is ragged at depth {len(shape)}: it holds both ranks and lists of ranks"
                )
            inner = list(item)
            if not children:
                width = len(inner)
            if len(inner) != width:
                raise ValueError(
                    f"ranks is ragged at depth {len(shape)}: lists of {width} and of {len(inner)}"
                )
            children += inner
        shape.append(width)
        level = children
        if not level:
            raise ValueError("ranks is empty; at least one rank would")
    if not shape:
        raise ValueError(f"ranks={ranks!r} must be a list, one level for each dim; [{ranks!r}] would")
    return [whole("ranks", item) for item in level], tuple(shape)
