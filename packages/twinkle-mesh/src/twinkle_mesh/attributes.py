"""The attributes of a mesh and their rules."""

from __future__ import annotations

from .layout.data_dims import check_data_dims, data_order, ordered_data_dims
from .rules.messages import would
from .rules.order import EXPERT_DIMS, inferred_expert_order
from .rules.rule_error import RuleError
from .rules.sizes import at_least_one, check_divides, check_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import NoReturn, Self

    from .layout.data_layout import DataLayout
    from .layout.layout import Layout
    from .layout.ranks import Ranks
    from .nodes import Nodes

    Views = tuple[tuple[str, tuple[str, ...]], ...]

_set = object.__setattr__


class Attributes:
    """Named dims over a layout of ranks: an immutable, hashable value."""

    __slots__ = (
        "_data",
        "_data_layout",
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
    """Names of the dims, outermost first."""
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
    views: Views
    """Names of flattened dims, each with its dims."""
    data_dims: tuple[str, ...]
    """Dims along which the samples differ, outermost in data order first."""
    nodes: Nodes | None
    """The nodes of the ranks, where they are known."""
    _layout: Layout
    _etp: int | None
    _expert_order: tuple[str, ...] | None
    _data: tuple[int, ...]
    _data_layout: DataLayout | None
    """The position in data order of each coordinate, where the positions are not row-major over `data_dims`."""
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
        views: Views = (),
        data_dims: tuple[str, ...] | None = None,
        data_layout: DataLayout | None = None,
        nodes: Nodes | None = None,
    ) -> None:
        names = check_names(dim_names)
        if len(names) != len(layout.shape):
            raise ValueError(
                f"dim_names={names} names {len(names)} dims, but the ranks have the shape {layout.shape}; "
                f"{len(layout.shape)} names would"
            )
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
        _set(self, "_layout", layout)
        _set(self, "dim_names", names)
        _set(self, "views", views)
        _set(self, "data_dims", data_dims)
        _set(self, "nodes", nodes)
        _set(self, "device_type", device_type if device_type == "cuda" else _device_type(device_type))
        _set(self, "_data", tuple([names.index(name) for name in data_dims]))
        _set(self, "_data_layout", data_layout)
        _set(self, "_hash", None)
        _set(self, "ulysses_size", 1 if ulysses_size is None else at_least_one("ulysses_size", ulysses_size))
        _set(self, "ep_size", 1 if ep_size is None else at_least_one("ep_size", ep_size))
        _set(self, "vpp_size", 1 if vpp_size is None else at_least_one("vpp_size", vpp_size))
        if sequence_parallel not in (True, False):
            raise ValueError(f"sequence_parallel={sequence_parallel!r} must be True or False")
        _set(self, "sequence_parallel", bool(sequence_parallel))
        etp = None if etp_size is None else at_least_one("etp_size", etp_size)
        _set(self, "_etp", None if etp == self.size("tp") else etp)
        if views:
            self._check_views()
        self._check_sizes()
        _set(self, "_expert_order", None if expert_order is None else self._canonical_expert_order(expert_order))

    def _canonical_expert_order(self, expert_order: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return the expert order with dims of size 1 first; None where the inferred order gives the same view."""
        if set(expert_order) != set(EXPERT_DIMS):
            raise ValueError(f"expert_order={expert_order} must name ep_shard, ep and etp, outermost first")
        given = self._large_expert_dims(expert_order)
        inferred = self._large_expert_dims(inferred_expert_order(self.dim_names, self._layout.factors))
        return None if given == inferred else (*(name for name in EXPERT_DIMS if name not in given), *given)

    def _large_expert_dims(self, order: tuple[str, ...]) -> list[str]:
        """Return the expert dims of sizes above 1 in the given order."""
        inside = self.ep_size * self.etp_size
        sizes = {"ep": self.ep_size, "etp": self.etp_size, "ep_shard": self.world_size // self.size("pp") // inside}
        return [name for name in order if sizes[name] > 1]

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
            check_divides("ulysses_size", self.ulysses_size, self._data_positions, f"{amount}={self._data_positions}")
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
            said = "sequence_parallel=True needs tp_size > 1, but tp_size=1"
            raise RuleError(said, {"sequence_parallel": [False]})

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
    def _data_positions(self) -> int:
        """Number of positions in data order: data_world_size * ulysses_size."""
        if self._data_layout is not None:
            return self._data_layout.count
        places = 1
        for dim in self._data:
            places *= self._layout.shape[dim]
        return places

    @property
    def is_regular(self) -> bool:
        """Whether the ranks are computed by arithmetic. Otherwise the mesh keeps a table of them."""
        return self._layout.table is None

    def has_dim(self, dim: str) -> bool:
        """Tell whether `dim` is one of `dim_names` (views are not)."""
        return dim in self.dim_names

    def size(self, dim: str) -> int:
        """Return the size of a dim or view; 1 for a dim that the mesh does not have."""
        names = self.dim_names
        if dim in names:
            return self._layout.shape[names.index(dim)]
        total = 1
        for view, parts in self.views:
            if view == dim:
                for part in parts:
                    total *= self._layout.shape[names.index(part)]
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
    def expert_order(self) -> tuple[str, ...]:
        """The dims of the expert view without pp, outermost first in rank order."""
        return self._expert_order or inferred_expert_order(self.dim_names, self._layout.factors)

    def _dim(self, name: str) -> int:
        if name not in self.dim_names:
            raise ValueError(f"the mesh has no dim {name!r}; {would(map(repr, self.dim_names))}")
        return self.dim_names.index(name)

    def _sizes(self) -> str:
        return ", ".join(f"{name}={size}" for name, size in zip(self.dim_names, self.shape, strict=True))

    def _state(self) -> tuple[object, ...]:
        data = self._data_layout and self._data_layout.key
        return self._layout.key, self._traits(), self._expert_order, self.data_dims, data

    def _traits(self) -> tuple[object, ...]:
        """All attributes except the ranks, their data and the order of the expert dims."""
        return (
            self.dim_names,
            self.device_type,
            self.ulysses_size,
            self.ep_size,
            self._etp,
            self.vpp_size,
            self.sequence_parallel,
            self.views,
            self.nodes,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Attributes):
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


def _device_type(device_type: object) -> str:
    if not isinstance(device_type, str) or not device_type.strip().isalnum():
        raise ValueError(f"device_type={device_type!r} must be torch's name of a device; 'cuda', 'cpu' or 'npu' would")
    kind = device_type.strip().lower()
    return "cuda" if kind == "gpu" else kind
