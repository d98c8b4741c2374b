"""The attributes of a mesh and their rules."""

from __future__ import annotations

from .layout.data_dims import check_data_dims, data_order, ordered_data_dims
from .named_dims import NamedDims
from .rules.checks import at_least_one, check_divides
from .rules.order import EXPERT_DIMS, inferred_expert_order
from .rules.rule_error import RuleError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from .layout.data_layout import DataLayout
    from .layout.layout import Layout
    from .named_dims import Views
    from .nodes import Nodes

_set = object.__setattr__
_TRAITS = (
    *("dim_names", "device_type", "ulysses_size", "ep_size", "_etp"),
    *("vpp_size", "sequence_parallel", "views", "nodes"),
)


class Attributes(NamedDims):
    """The attributes of a mesh: an immutable, hashable value."""

    __slots__ = (
        "_data",
        "_data_layout",
        "_etp",
        "_expert_order",
        "_hash",
        "_parts_of",
        "_renamed",
        "data_dims",
        "device_type",
        "ep_size",
        "nodes",
        "sequence_parallel",
        "ulysses_size",
        "vpp_size",
    )

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
    _etp: int | None
    _expert_order: tuple[str, ...] | None
    _data: tuple[int, ...]
    _data_layout: DataLayout | None
    """The position in data order of each coordinate, where the positions are not row-major over `data_dims`."""
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
        super().__init__(layout, dim_names, views)
        names = self.dim_names
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
        _set(self, "device_type", device_type if device_type == "cuda" else _device_type(device_type))
        _set(self, "_data", tuple([names.index(name) for name in data_dims]))
        _set(self, "_data_layout", data_layout)
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
            problem = "sequence_parallel=True needs tp_size > 1, but tp_size=1"
            raise RuleError(problem, {"sequence_parallel": [False]})

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
    def etp_size(self) -> int:
        """Tensor parallel ranks of the experts; `tp_size` unless it was given."""
        return self.size("tp") if self._etp is None else self._etp

    @property
    def expert_order(self) -> tuple[str, ...]:
        """The dims of the expert view without pp, outermost first in rank order."""
        return self._expert_order or inferred_expert_order(self.dim_names, self._layout.factors)

    def _state(self) -> tuple[object, ...]:
        data = self._data_layout and self._data_layout.key
        return self._layout.key, self._traits(), self._expert_order, self.data_dims, data

    def _traits(self) -> tuple[object, ...]:
        """All attributes except the ranks, their data and the order of the expert dims."""
        return tuple([getattr(self, name) for name in _TRAITS])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Attributes):
            return NotImplemented
        return self is other or self._state() == other._state()

    def __hash__(self) -> int:
        if self._hash is None:
            _set(self, "_hash", hash(self._state()))
        assert self._hash is not None
        return self._hash


def check_alike(mesh: Attributes, other: Attributes) -> None:
    """Raise ValueError unless the attributes of two meshes differ in their ranks only."""
    differ = [name for name in ("shape", *_TRAITS) if getattr(mesh, name) != getattr(other, name)]
    orders = [each._large_expert_dims(each.expert_order) for each in (mesh, other)]
    if not differ and mesh._expert_order != other._expert_order and orders[0] != orders[1]:
        differ = ["expert_order"]
    if differ:
        name = "etp_size" if differ[0] == "_etp" else differ[0]
        found = f"{name} is {getattr(mesh, name)!r} in {mesh!r} and {getattr(other, name)!r} in {other!r}"
        raise ValueError(f"concat needs meshes that differ in their ranks only, but {found}")


def _device_type(device_type: object) -> str:
    if not isinstance(device_type, str) or not device_type.strip().isalnum():
        problem = f"device_type={device_type!r} must be torch's name of a device"
        raise RuleError(problem, {"device_type": ["cuda", "cpu", "npu"]}, named=False)
    kind = device_type.strip().lower()
    return "cuda" if kind == "gpu" else kind
