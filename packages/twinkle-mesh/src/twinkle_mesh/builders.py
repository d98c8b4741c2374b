"""Meshes from sizes and from explicit ranks."""

from __future__ import annotations

from _collections_abc import Iterable  # the same class; importing collections.abc costs milliseconds

from .layout.data_dims import warn_of_unknown
from .layout.layout import Layout
from .rules import order as orders
from .rules.checks import at_least_one, whole_number
from .rules.rule_error import RuleError
from .rules.sizes import infer_sizes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, TypeVar

    from .value import MeshValue

    Mesh = TypeVar("Mesh", bound=MeshValue)

_DIMS = {"fsdp_size": "fsdp", "pp_size": "pp", "dp_size": "dp", "cp_size": "cp", "tp_size": "tp"}


def from_sizes(kind: type[Mesh], fields: Mapping[str, Any]) -> Mesh:
    """Build a mesh from the arguments of `DeviceMesh.from_sizes`."""
    try:
        return _sized(kind, fields)
    except RuleError as error:
        raise error.fitting(lambda others: _sized(kind, others), fields) from None


def from_ranks(
    kind: type[Mesh], ranks: object, dim_names: str | Sequence[str], fields: Mapping[str, Any], stacklevel: int = 3
) -> Mesh:
    """Build a mesh from the arguments of `DeviceMesh.from_ranks`; a warning has that stack level in this function."""
    flat, shape = _flat(ranks)
    seen: set[int] = set()
    for rank in flat:
        if rank in seen:
            raise ValueError(f"ranks holds {rank} {flat.count(rank)} times; each rank must occur once")
        seen.add(rank)
    if min(flat) < 0:
        raise ValueError(f"ranks holds {min(flat)}; ranks are at least 0")
    layout = Layout.of_ranks(flat, shape)
    names = (dim_names,) if isinstance(dim_names, str) else dim_names
    given = fields.get("data_dims")
    fields = {**fields, "data_dims": (given,) if isinstance(given, str) else given and tuple(given)}
    try:
        mesh = kind(layout, names, **fields)
    except RuleError as error:
        raise error.fitting(lambda others: kind(layout, names, **others), fields) from None
    if given is None:
        warn_of_unknown(dict(zip(mesh.dim_names, mesh.shape, strict=True)), stacklevel)
    return mesh


def _sized(kind: type[Mesh], fields: Mapping[str, Any]) -> Mesh:
    rest = dict(fields)
    order, world_size, ep_size = rest.pop("order"), rest.pop("world_size"), rest["ep_size"]
    sizes = infer_sizes({name: rest.pop(field) for field, name in _DIMS.items()}, world_size)
    dims: Sequence[str] = orders.DEFAULT
    experts = None
    if order is not None:
        ep = 1 if ep_size is None else at_least_one("ep_size", ep_size)
        dims, experts = orders.parse(order, ep, [name for name, size in sizes.items() if size > 1])
    names = [name for name in dims if name in sizes]
    return kind(Layout.contiguous([sizes[name] for name in names]), names, expert_order=experts, **rest)


def _flat(ranks: object) -> tuple[list[int], tuple[int, ...]]:
    """Return nested ranks in row-major order and their shape."""
    as_list = getattr(ranks, "tolist", None)
    level: list[object] = [as_list() if callable(as_list) else ranks]
    shape: list[int] = []
    while True:
        lists = [list(item) for item in level if isinstance(item, Iterable) and not isinstance(item, str)]
        if not lists:
            break
        widths = sorted({len(item) for item in lists})
        if len(lists) != len(level) or len(widths) > 1:
            raise ValueError(f"ranks is ragged at depth {len(shape)}: every list there must have the same length")
        if widths == [0]:
            raise ValueError("ranks is empty; use a list of at least one rank")
        shape.append(widths[0])
        level = [child for item in lists for child in item]
    if not shape:
        raise ValueError(f"ranks={ranks!r} must be a list with one level for each dim; [{ranks!r}] would be one dim")
    return [whole_number("ranks", item) for item in level], tuple(shape)
