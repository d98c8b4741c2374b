"""The device mesh: ranks over named parallel dims, and which of them get which rows of a batch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from math import prod
from operator import index
from typing import TYPE_CHECKING, Any, SupportsIndex

from .expert import checked_order, expert_view
from .layout import Layout, flattened
from .part import DATA_DIMS, SAME_DATA, data_dims_by_name, submesh
from .rank import running_rank
from .show import describe, mesh_repr
from .sizes import balanced_slice, check_divides, infer_sizes, parse_order, shortened, whole_number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh

    Dims = str | Sequence[str]


@dataclass(frozen=True, repr=False)
class DeviceMesh:
    """Ranks over named dims: an immutable, hashable value. Build it with `from_sizes`, `from_ranks` or `from_torch`.

    Ranks with the same data rank get the same rows: each rank has one, and each data rank has ranks. A method with
    `rank=None` means the running worker, or else the process that the launcher started.

    Attributes:
        dim_names: Names of the dims, outermost first.
        layout: The rank at each coordinate.
        device_type: torch's name of the device: "cuda", "cpu", "npu", ...
        data_dims: Dims whose ranks get different rows, outermost in data order first. None for a part of a mesh that
            cannot say it: it cuts through ulysses groups, or a dim of it joins dims of both kinds.
        ulysses_size: Neighbours in data order that share their rows and split the sequence.
        ep_size: Expert parallel ranks; see `expert`.
        etp_size: Tensor parallel ranks of the experts; 0 stands for those of tp.
        vpp_size: Virtual stages per pipeline rank.
        sequence_parallel: Whether activations are split over tp.
        expert_order: The expert dims, outermost first in rank order; when None, etp and ep_shard are to each other as
            tp and the data dims are.
        views: Names for several dims together, such as dp for (dp_replicate, dp_shard).
    """

    dim_names: tuple[str, ...]
    layout: Layout
    device_type: str = "cuda"
    data_dims: tuple[str, ...] | None = ()
    ulysses_size: int = 1
    ep_size: int = 1
    etp_size: int = 0
    vpp_size: int = 1
    sequence_parallel: bool = False
    expert_order: tuple[str, ...] | None = None
    views: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def __post_init__(self) -> None:
        names = self.dim_names
        if len(names) != len(self.shape):
            raise ValueError(f"dim_names={names} must name the {len(self.shape)} dims of the shape {self.shape}")
        known = [*names, *(view for view, _ in self.views)]
        for name in known:
            if not name.isidentifier() or known.count(name) > 1:
                raise ValueError(f"dim name {name!r} must be a word such as 'dp', and each dim or view has its own")
        data = self.data_dims or ()
        for name in (*data, *(part for _, parts in self.views for part in parts)):
            self.dim_number(name)
        if len(set(data)) != len(data) or set(data) & set(SAME_DATA):
            raise ValueError(f"data_dims={data} must name dims whose ranks get different rows, each once")
        own = {field: whole_number(field, getattr(self, field), 1) for field in ("ulysses_size", "ep_size", "vpp_size")}
        etp = whole_number("etp_size", self.etp_size, 0) or self.size("tp")
        kind, parallel = _device_type(self.device_type), bool(self.sequence_parallel)
        self.__dict__.update(own, etp_size=etp, device_type=kind, sequence_parallel=parallel)
        if self.ulysses_size > 1:
            amount = " * ".join(f"{name}_size" for name in data) or "the data parallel ranks"
            positions = prod([self.size(name) for name in data])
            check_divides("ulysses_size", self.ulysses_size, positions, f"{amount}={positions}")
        if self.vpp_size > 1 and self.size("pp") == 1:
            raise ValueError(f"vpp_size={self.vpp_size} needs pp_size > 1, but pp_size=1; use vpp_size=1")
        if self.sequence_parallel and self.size("tp") == 1:
            raise ValueError("sequence_parallel=True needs tp_size > 1, but tp_size=1; use sequence_parallel=False")
        self.__dict__["expert_order"] = checked_order(self)

    def __reduce__(self) -> tuple[object, ...]:
        return DeviceMesh, tuple([getattr(self, field.name) for field in fields(self)])

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
    ) -> DeviceMesh:
        """Build a mesh of ranks 0 to world_size - 1 from the sizes of its dims.

        Args:
            world_size: Number of ranks; the product of the sizes when None, or when it is 1 and they multiply to more.
            dp_size: Data parallel replicas; inferred when None. One size of -1 is inferred too.
            fsdp_size: Fully sharded data parallel ranks.
            tp_size: Tensor parallel ranks.
            pp_size: Pipeline stages.
            ulysses_size: Ranks among dp * fsdp that share their rows and split the sequence; not a dim.
            cp_size: Context parallel ranks.
            ep_size: Expert parallel ranks; see `expert`.
            etp_size: Tensor parallel ranks of the experts; `tp_size` when None, as in Megatron.
            vpp_size: Virtual stages per pipeline rank; needs `pp_size` > 1.
            device_type: torch's name of the device: "cuda", "cpu", "npu", ...
            sequence_parallel: Whether activations are split over tp; needs `tp_size` > 1.
            order: Dims innermost first in Megatron's spelling, such as "tp-cp-ep-dp-pp"; by default the dims are,
                outermost first, fsdp, pp, dp, cp, tp.

        Raises:
            ValueError: Sizes do not fit; the error names the rule, the values and what to use.
        """
        given = {"fsdp": fsdp_size, "pp": pp_size, "dp": dp_size, "cp": cp_size, "tp": tp_size}
        sizes = infer_sizes(given, world_size)
        others = {"ulysses_size": ulysses_size, "ep_size": ep_size, "etp_size": etp_size, "vpp_size": vpp_size}
        known: dict[str, Any] = {
            field: whole_number(field, size, 1) for field, size in others.items() if size is not None
        }
        dims, expert_order = parse_order(order, sizes, known.get("ep_size", 1))
        layout, data = Layout.contiguous([sizes[name] for name in dims]), [name for name in DATA_DIMS if name in sizes]
        known |= {"sequence_parallel": sequence_parallel, "expert_order": expert_order}
        return cls(tuple(dims), layout, device_type, tuple(data), **known)

    @classmethod
    def from_ranks(
        cls,
        ranks: Any,
        dim_names: Dims,
        *,
        device_type: str = "cuda",
        ulysses_size: int = 1,
        ep_size: int = 1,
        etp_size: int | None = None,
        vpp_size: int = 1,
        sequence_parallel: bool = False,
        data_dims: Dims | None = None,
    ) -> DeviceMesh:
        """Build a mesh from explicit ranks: nested lists or an array, with one level for each name, outermost first.

        `data_dims` are the dims whose ranks get different rows, outermost in data order first. By default the names say
        it: `DATA_DIMS` and `SAME_DATA` hold those that do. All else is as in `from_sizes`.

        Raises:
            ValueError: For ragged, repeated or negative ranks, for a dim whose name says nothing about its rows without
                `data_dims`, and for what `from_sizes` refuses.
        """
        names = (dim_names,) if isinstance(dim_names, str) else tuple(dim_names)
        layout = Layout.of_ranks(*flattened(ranks))
        if data_dims is None:
            data_dims = data_dims_by_name(dict(zip(names, layout.shape, strict=False)))
        data = (data_dims,) if isinstance(data_dims, str) else tuple(data_dims)
        etp = 0 if etp_size is None else whole_number("etp_size", etp_size, 1)
        return cls(names, layout, device_type, data, ulysses_size, ep_size, etp, vpp_size, sequence_parallel)

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of each dim, in the order of `dim_names`."""
        return self.layout.shape

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return prod(self.shape)

    @property
    def ranks(self) -> list[int]:
        """All ranks, row-major over the dims."""
        return self.layout.ranks()

    def has_dim(self, dim: str) -> bool:
        """Tell whether `dim` is one of `dim_names` (views are not)."""
        return dim in self.dim_names

    def size(self, dim: str) -> int:
        """Return the size of a dim or view; 1 for a dim that the mesh does not have."""
        return self._sizes.get(dim, 1)

    @cached_property
    def _sizes(self) -> dict[str, int]:
        sizes = dict(zip(self.dim_names, self.shape, strict=True))
        return {**sizes, **{name: prod([sizes[part] for part in parts]) for name, parts in self.views}}

    def __contains__(self, rank: object) -> bool:
        return isinstance(rank, SupportsIndex) and self.layout.coords(index(rank)) is not None

    def coordinate(self, rank: int | None = None) -> dict[str, int]:
        """Return the coordinate of a rank in every dim; an error for a rank that is not in the mesh, as everywhere."""
        return dict(zip(self.dim_names, self._coords(rank), strict=True))

    def rank_at(self, **coords: int) -> int:
        """Return the rank at the given coordinates; dims of size 1 can be left out."""
        for name in coords:
            self.dim_number(name)
        places = []
        for name, size in zip(self.dim_names, self.shape, strict=True):
            if name not in coords and size > 1:
                raise ValueError(f"rank_at needs {name}= as well, in [0, {size - 1}]")
            places.append(whole_number(name, coords.get(name, 0), 0))
            if places[-1] >= size:
                raise ValueError(f"{name}={places[-1]} is outside [0, {size - 1}]")
        return self.layout.rank(places)

    def group(self, dims: Dims, rank: int | None = None) -> list[int]:
        """Return the ranks that differ from a rank only in some dims or views, in the mesh's order.

        A parallel dim that the mesh does not have, such as tp, has the size 1.
        """
        return self.layout.ranks(self._chosen(dims), self._coords(rank))

    def groups(self, dims: Dims) -> list[list[int]]:
        """Return every group along some dims or views, by first rank."""
        chosen, coords = self._chosen(dims), [0] * len(self.shape)
        starts = self.layout.ranks([dim for dim in range(len(coords)) if dim not in chosen], coords)
        return sorted([self.group(dims, start) for start in starts])

    def dim_number(self, name: str) -> int:
        """Return the place of a dim in `dim_names`."""
        if name not in self.dim_names:
            raise ValueError(f"the mesh has no dim {name!r}; use one of {', '.join(map(repr, self.dim_names))}")
        return self.dim_names.index(name)

    def _chosen(self, dims: Dims) -> list[int]:
        """The numbers of dims and of the dims of views, in the mesh's order."""
        views, found = dict(self.views), set()
        for name in (dims,) if isinstance(dims, str) else dims:
            if name in views or name in self.dim_names:
                found.update([self.dim_names.index(part) for part in views.get(name, (name,))])
            elif name not in (*DATA_DIMS, *SAME_DATA):
                known = ", ".join(map(repr, (*self.dim_names, *views)))
                raise ValueError(f"the mesh has no dim or view {name!r}; use one of {known}")
        return sorted(found)

    def _coords(self, rank: int | None) -> list[int]:
        rank = running_rank(self) if rank is None else whole_number("rank", rank, 0)
        coords = self.layout.coords(rank)
        if coords is None:
            raise ValueError(f"rank={rank} is not in the mesh, whose ranks are {shortened(self.ranks)}")
        return coords

    @property
    def _data(self) -> tuple[str, ...]:
        if self.data_dims is None:
            why = "cuts through ulysses groups, or joins dims of the same and of different rows"
            raise ValueError(f"{self!r} is a part of a mesh that {why}: use those of the whole mesh for its data ranks")
        return self.data_dims

    @cached_property
    def data_world_size(self) -> int:
        """Number of data ranks, which is the number of shares of a batch: dp * fsdp / ulysses."""
        return prod([self.size(name) for name in self._data]) // self.ulysses_size

    def data_rank(self, rank: int | None = None) -> int:
        """Return the data rank of a rank: (dp_rank * fsdp_size + fsdp_rank) // ulysses_size."""
        coords, position = self._coords(rank), 0
        for dim in map(self.dim_names.index, self._data):
            position = position * self.shape[dim] + coords[dim]
        return position // self.ulysses_size

    def get_slice(self, total_length: int, rank: int | None = None) -> slice:
        """Return the rows of a batch that a rank gets: the first `length % data_world_size` data ranks get one more."""
        return balanced_slice(total_length, self.data_world_size, self.data_rank(rank))

    def same_data(self, rank: int | None = None) -> list[int]:
        """Return the ranks that get the same rows as a rank, ascending; it is one of them."""
        return sorted(self._shares({})[self.data_rank(rank)])

    @property
    def collect_ranks(self) -> list[int]:
        """One rank for each data rank, by data rank: the lowest one on the last pipeline stage."""
        return list(map(min, self._shares({"pp": self.size("pp") - 1})))

    def _shares(self, fixed: Mapping[str, int]) -> list[list[int]]:
        """The ranks of each data rank, by data rank, that have some fixed coordinates."""
        others = [name for name in self.dim_names if name not in (*self._data, *fixed)]
        dims = map(self.dim_names.index, (*self._data, *others))
        ranks = self.layout.ranks(dims, [fixed.get(name, 0) for name in self.dim_names])
        step = len(ranks) // self.data_world_size
        return [ranks[start : start + step] for start in range(0, len(ranks), step)]

    @property
    def pp_first_ranks(self) -> list[int]:
        """The ranks of the first pipeline stage, ascending; all ranks without pp."""
        return sorted(self.stage(0))

    @property
    def pp_last_ranks(self) -> list[int]:
        """The ranks of the last pipeline stage, ascending; all ranks without pp."""
        return sorted(self.stage(self.size("pp") - 1))

    def stage(self, stage: int) -> list[int]:
        """Return the ranks of a pipeline stage, row-major; all ranks without pp."""
        rest = [dim for dim, name in enumerate(self.dim_names) if name != "pp"]
        return self.layout.ranks(rest, [stage if name == "pp" else 0 for name in self.dim_names])

    def submesh(self, dims: Dims, rank: int | None = None) -> DeviceMesh:
        """Return the mesh of some dims that holds a rank: `mesh.submesh(("dp", "tp"), 5)`.

        Each rank keeps its rows, and data ranks are numbered from 0. Where the part cannot say them, because it cuts
        through ulysses groups, whatever asks for a data rank is an error.

        Args:
            dims: Names of dims or views, in the order of the new mesh; a view becomes one dim.
            rank: Any rank of the new mesh.
        """
        return submesh(self, (dims,) if isinstance(dims, str) else tuple(dims), self._coords(rank))

    def __getitem__(self, dims: Dims) -> DeviceMesh:
        """Return the submesh that holds the mesh's first rank: `mesh["dp", "tp"]`."""
        return self.submesh(dims, self.layout.rank([0] * len(self.shape)))

    @property
    def expert(self) -> DeviceMesh:
        """The same ranks over pp, ep_shard (the experts' data parallelism), ep and etp, with Megatron's groups."""
        return expert_view(self)

    def to_torch(self) -> TorchDeviceMesh:
        """Build torch's DeviceMesh of all ranks, with the views as flattened dims; see `to_torch.to_torch`."""
        from .to_torch import to_torch

        return to_torch(self)

    @staticmethod
    def from_torch(torch_mesh: TorchDeviceMesh, *, data_dims: Dims | None = None) -> DeviceMesh:
        """Return the mesh with the ranks and dims of torch's mesh, without its flattened dims; see `from_ranks`."""
        names, kind = torch_mesh.mesh_dim_names, torch_mesh.device_type
        if not names:
            raise ValueError("from_torch needs a mesh with names; mesh_dim_names= of torch's DeviceMesh gives them")
        return DeviceMesh.from_ranks(torch_mesh.mesh, names, device_type=kind, data_dims=data_dims)

    def to_dict(self) -> dict[str, Any]:
        """Return the mesh as JSON values; `from_dict` gives an equal mesh back."""
        return dict(json.loads(json.dumps(asdict(self))))

    @staticmethod
    def from_dict(state: Mapping[str, Any]) -> DeviceMesh:
        """Build the mesh that `to_dict` described; a ValueError for anything else, which may come from a network."""
        try:
            layout = Layout(**{name: _tupled(value) for name, value in state["layout"].items()})
            return DeviceMesh(**{**{name: _tupled(value) for name, value in state.items()}, "layout": layout})
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise ValueError(f"not the state of a DeviceMesh: {error!r}") from error

    def describe(self, rank: int | None = None) -> str:
        """Return the mesh as text: a grid for each slice of the outer dims, with data ranks; `rank` is marked."""
        return describe(self, rank)

    def __repr__(self) -> str:
        return mesh_repr(self)


def _device_type(given: object) -> str:
    """Return torch's name of a device in lower case; "gpu" is "cuda"."""
    kind = str(given).strip().lower()
    if not kind.isalnum():
        raise ValueError(f"device_type={given!r} must be torch's name of a device; use 'cuda', 'cpu' or 'npu'")
    return "cuda" if kind == "gpu" else kind


def _tupled(value: Any) -> Any:
    return tuple([_tupled(item) for item in value]) if isinstance(value, list) else value
