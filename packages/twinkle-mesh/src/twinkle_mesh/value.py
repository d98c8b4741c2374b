"""A mesh as a value: its dims, attributes, ranks, coordinates and groups."""

from __future__ import annotations

from .context import running_rank
from .layout.data_dims import check_data_dims, data_order, ordered_data_dims
from .layout.ranks import Groups
from .rules.checks import at_least_one, check_divides, check_names, device_kind, named, whole_number
from .rules.messages import use_one_of
from .rules.order import canonical_expert_order, inferred_expert_order
from .rules.rule_error import RuleError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any, NoReturn, Self

    from .layout.data_layout import DataLayout
    from .layout.layout import Layout
    from .layout.ranks import Ranks
    from .nodes import Nodes

    Dims = str | Sequence[str]
    Views = tuple[tuple[str, tuple[str, ...]], ...]

_set = object.__setattr__
_PARALLEL_DIMS = ("fsdp", "pp", "dp", "cp", "tp", "dp_replicate", "dp_shard", "ep_shard", "ep", "etp")
TRAITS = (
    "dim_names",
    "device_type",
    "ulysses_size",
    "ep_size",
    "_etp",
    "vpp_size",
    "sequence_parallel",
    "views",
    "nodes",
)
"""All attributes except the ranks, their data and the order of the expert dims."""


class MeshValue:
    """Named dims over a layout of ranks, and their attributes: an immutable, hashable value."""

    __slots__ = (
        "_data",
        "_etp",
        "_expert_order",
        "_hash",
        "_parts_of",
        "_renamed",
        "data_dims",
        "data_layout",
        "device_type",
        "dim_names",
        "ep_size",
        "layout",
        "nodes",
        "sequence_parallel",
        "ulysses_size",
        "views",
        "vpp_size",
    )

    layout: Layout
    """The arithmetic of the ranks, to read: the factors of each dim and an offset, or a table."""
    dim_names: tuple[str, ...]
    """Names of the dims, outermost first."""
    views: Views
    """Names of flattened dims, each with its dims."""
    device_type: str
    """torch's name of the device: "cuda", "cpu", "npu", ..."""
    ulysses_size: int
    """Ulysses ranks: neighbours in data order that share their samples and split the sequence."""
    ep_size: int
    """Expert parallel ranks; see `DeviceMesh.expert`."""
    vpp_size: int
    """Virtual stages per pipeline rank."""
    sequence_parallel: bool
    """Whether activations are split over tp."""
    data_dims: tuple[str, ...]
    """Dims along which the samples differ, outermost in data order first."""
    nodes: Nodes | None
    """The nodes of the ranks, where they are known."""
    data_layout: DataLayout | None
    """The position in data order of each coordinate, where the positions are not row-major over `data_dims`."""
    _etp: int | None
    _expert_order: tuple[str, ...] | None
    _data: tuple[int, ...]
    _hash: int | None
    _parts_of: tuple[tuple[Layout, tuple[int, ...]], ...]
    """The layouts that this mesh is a part of, the latest first, each with the dims that were fixed."""
    _renamed: Any
    """The mesh before dims were renamed, and the name there of each dim; None for other meshes."""

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
        views: Views = (),
        data_dims: tuple[str, ...] | None = None,
        data_layout: DataLayout | None = None,
        nodes: Nodes | None = None,
    ) -> None:
        names = check_names(dim_names)
        if len(names) != len(layout.shape):
            raise ValueError(
                f"dim_names={names} names {len(names)} dims, but the ranks have the shape {layout.shape}; "
                f"use {len(layout.shape)} names"
            )
        _set(self, "layout", layout)
        _set(self, "dim_names", names)
        _set(self, "views", views)
        if views:
            self._check_views()
        if data_layout is not None:
            row_major = data_layout.row_major_dims()
            dims = data_layout.dims_with_data() if row_major is None else row_major
            data_dims = tuple([names[dim] for dim in dims])
            data_layout = data_layout if row_major is None else None
        if data_dims is None:
            data_dims = data_order(names)
        elif data_layout is None:
            data_dims = ordered_data_dims(data_dims, dict(zip(names, layout.shape, strict=True)))
        else:
            check_data_dims(data_dims, names)
        _set(self, "data_dims", data_dims)
        _set(self, "nodes", nodes)
        _set(self, "device_type", device_type if device_type == "cuda" else device_kind(device_type))
        _set(self, "_data", tuple([names.index(name) for name in data_dims]))
        _set(self, "data_layout", data_layout)
        _set(self, "_hash", None)
        _set(self, "_renamed", None)
        _set(self, "_parts_of", ())
        _set(self, "ulysses_size", 1 if ulysses_size is None else at_least_one("ulysses_size", ulysses_size))
        _set(self, "ep_size", 1 if ep_size is None else at_least_one("ep_size", ep_size))
        _set(self, "vpp_size", 1 if vpp_size is None else at_least_one("vpp_size", vpp_size))
        if sequence_parallel not in (True, False):
            raise ValueError(f"sequence_parallel={sequence_parallel!r} must be True or False")
        _set(self, "sequence_parallel", bool(sequence_parallel))
        etp = None if etp_size is None else at_least_one("etp_size", etp_size)
        _set(self, "_etp", None if etp == self.size("tp") else etp)
        self._check_sizes()
        inferred = inferred_expert_order(names, layout.factors)
        order = None if expert_order is None else canonical_expert_order(expert_order, inferred, self.expert_sizes)
        _set(self, "_expert_order", order)

    def _check_views(self) -> None:
        seen = list(self.dim_names)
        check_names([name for name, _ in self.views])
        for name, dims in self.views:
            if name in seen:
                raise ValueError(f"the view {name!r} has the name of a dim or of another view; names must differ")
            if not dims or len(set(dims)) != len(dims):
                raise ValueError(f"the view {name!r} of {dims} must stand for at least one dim, each named once")
            for dim in dims:
                self._dim(dim)
            seen.append(name)

    def _check_sizes(self) -> None:
        if self.ulysses_size > 1:
            amount = " * ".join(f"{name}_size" for name in self.data_dims) or "the data parallel ranks"
            check_divides("ulysses_size", self.ulysses_size, self.position_count, f"{amount}={self.position_count}")
        if self.ep_size > 1 or self._etp is not None:
            etp, pp = self.etp_size, self.size("pp")
            dense = self.world_size // pp
            taken_from = f"(world_size={self.world_size} / pp_size={pp}"
            check_divides("etp_size", etp, dense, f"the dense world of {dense} ranks {taken_from})")
            experts = dense // etp
            check_divides(
                "ep_size", self.ep_size, experts, f"the dense world's {experts} {taken_from} / etp_size={etp})"
            )
        if self.vpp_size > 1 and self.size("pp") == 1:
            raise RuleError(f"vpp_size={self.vpp_size} needs pp_size > 1, but pp_size=1", {"vpp_size": [1]})
        if self.sequence_parallel and self.size("tp") == 1:
            problem = "sequence_parallel=True needs tp_size > 1, but tp_size=1"
            raise RuleError(problem, {"sequence_parallel": [False]})

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of each dim, in the order of `dim_names`."""
        return self.layout.shape

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.layout.size

    @property
    def ranks(self) -> Ranks:
        """All ranks in row-major order of the dims, computed as they are read."""
        return self.layout.ranks()

    @property
    def is_regular(self) -> bool:
        """Whether the ranks are computed by arithmetic. Otherwise the mesh keeps a table of them."""
        return self.layout.table is None

    def has_dim(self, dim: str) -> bool:
        """Tell whether `dim` is one of `dim_names` (views are not)."""
        return dim in self.dim_names

    def size(self, dim: str) -> int:
        """Return the size of a dim or view; 1 for a dim that the mesh does not have."""
        names = self.dim_names
        if dim in names:
            return self.layout.shape[names.index(dim)]
        total = 1
        for view, parts in self.views:
            if view == dim:
                for part in parts:
                    total *= self.layout.shape[names.index(part)]
        return total

    @property
    def dp_size(self) -> int:
        """Size of the dp dim or view."""
        return self.size("dp")

    @property
    def fsdp_size(self) -> int:
        """Size of the fsdp dim or view."""
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
        """Tensor parallel ranks of the experts; `tp_size` unless it was given."""
        return self.size("tp") if self._etp is None else self._etp

    @property
    def expert_sizes(self) -> dict[str, int]:
        """Size of each dim of the expert view without pp."""
        inside = self.ep_size * self.etp_size
        return {"ep": self.ep_size, "etp": self.etp_size, "ep_shard": self.world_size // self.size("pp") // inside}

    @property
    def expert_order(self) -> tuple[str, ...]:
        """The dims of the expert view without pp, outermost first in rank order."""
        return self._expert_order or inferred_expert_order(self.dim_names, self.layout.factors)

    def __contains__(self, rank: object) -> bool:
        try:
            return self.layout.coords(whole_number("rank", rank)) is not None
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
        return self.layout.rank([place or 0 for place in places])

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
        return self.layout.ranks(chosen, self.layout.place(coords))

    def groups(self, dims: Dims) -> Groups:
        """Return every group along `dims`, ascending by first rank. A group is computed when it is read."""
        chosen = self._dims_in(dims)
        others = [dim for dim in range(len(self.shape)) if dim not in chosen]
        return Groups(self.layout.ascending(others), lambda start: self.group(dims, start))

    def _coords(self, rank: int | None) -> list[int]:
        if rank is None:
            rank = running_rank(self.world_size, lambda: self.ranks[0], lambda: self.layout.highest)
        elif type(rank) is not int:
            rank = whole_number("rank", rank)
        coords = self.layout.coords(rank)
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
            raise ValueError(f"the mesh has no dim or view {name!r}; {use_one_of(options)}")
        return (self.dim_names.index(name),)

    def _dims_in(self, dims: Dims) -> list[int]:
        if isinstance(dims, str):
            dims = (dims,)
        chosen: set[int] = set()
        for name in named(dims):
            if name in self.dim_names:
                chosen.add(self.dim_names.index(name))
            elif name not in _PARALLEL_DIMS or self.size(name) > 1:
                chosen.update(self._parts(name))
        return sorted(chosen)

    def _dim(self, name: str) -> int:
        if name not in self.dim_names:
            raise ValueError(f"the mesh has no dim {name!r}; {use_one_of(map(repr, self.dim_names))}")
        return self.dim_names.index(name)

    def _sizes(self) -> str:
        return ", ".join(f"{name}={size}" for name, size in zip(self.dim_names, self.shape, strict=True))

    @property
    def position_count(self) -> int:
        """Number of positions in data order: data_world_size * ulysses_size."""
        if self.data_layout is not None:
            return self.data_layout.count
        places = 1
        for dim in self._data:
            places *= self.layout.shape[dim]
        return places

    def _state(self) -> tuple[object, ...]:
        data = self.data_layout and self.data_layout.key
        return self.layout.key, *[getattr(self, name) for name in TRAITS], self._expert_order, self.data_dims, data

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MeshValue):
            return NotImplemented
        return self is other or self._state() == other._state()

    def __hash__(self) -> int:
        if self._hash is None:
            _set(self, "_hash", hash(self._state()))
        assert self._hash is not None
        return self._hash

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a mesh does not change: {name} cannot be set; build another mesh")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a mesh does not change: {name} cannot be deleted")

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self
