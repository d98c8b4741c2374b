"""The meshes of torchtitan's ParallelDims."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

from twinkle_mesh.layout.layout import Layout
from twinkle_mesh.mesh import DeviceMesh
from twinkle_mesh.rules.checks import at_least_one, check_divides, whole_number
from twinkle_mesh.rules.rule_error import RuleError
from twinkle_mesh.rules.sizes import indivisible, unequal

if TYPE_CHECKING:
    from collections.abc import Mapping


class ParallelMeshes(NamedTuple):
    """The dense mesh and the expert mesh over the same ranks."""

    dense: DeviceMesh
    """(pp, dp_replicate, dp_shard, cp, tp), with the views batch, loss and fsdp."""
    expert: DeviceMesh | None
    """(pp, dp_replicate, efsdp, ep, etp); None without expert parallelism."""


def torchtitan_meshes(
    *,
    world_size: int,
    dp_replicate: int = 1,
    dp_shard: int = -1,
    cp: int = 1,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    etp: int | None = None,
    device_type: str = "cuda",
) -> ParallelMeshes:
    """Return torchtitan's meshes.

    Data is split over the view batch, losses are reduced over loss, and parameters are sharded over fsdp.

    Args:
        world_size: Number of ranks, which the degrees have to make up.
        dp_replicate: Replicas.
        dp_shard: Fully sharded data parallel ranks; inferred when -1.
        cp: Context parallel ranks.
        tp: Tensor parallel ranks.
        pp: Pipeline stages.
        ep: Expert parallel ranks, taken from dp_shard, cp and (where etp is not tp) tp.
        etp: Tensor parallel ranks of the experts: `tp` (the default) or 1.
        device_type: torch's name of the device.

    Raises:
        ValueError: for degrees that do not make up the world, or experts that do not fit into a replica.
    """
    fields = {
        "world_size": world_size,
        "dp_replicate": dp_replicate,
        "dp_shard": dp_shard,
        "cp": cp,
        "tp": tp,
        "pp": pp,
        "ep": ep,
        "etp": etp,
    }
    try:
        return _meshes(fields, device_type)
    except RuleError as error:
        raise error.fitting(lambda others: _meshes(others, device_type), fields) from None


def _meshes(fields: Mapping[str, object], device_type: str) -> ParallelMeshes:
    world = at_least_one("world_size", fields["world_size"])
    inferred = whole_number("dp_shard", fields["dp_shard"]) == -1
    degrees = {**fields, "dp_shard": 1} if inferred else fields
    sizes = {name: at_least_one(name, degrees[name]) for name in ("pp", "dp_replicate", "dp_shard", "cp", "tp")}
    total = prod(sizes.values())
    if inferred and world % total:
        raise indivisible(sizes, world, total, suffix="")
    if not inferred and world != total:
        raise unequal(sizes, world, total, suffix="")
    sizes["dp_shard"] *= world // total
    experts, cp, tp = at_least_one("ep", fields["ep"]), sizes["cp"], sizes["tp"]
    expert_tp = tp if fields["etp"] is None else whole_number("etp", fields["etp"])
    if expert_tp not in (1, tp):
        raise RuleError(f"etp={expert_tp} must be 1 or tp={tp}", {"etp": sorted({1, tp})}, named=False)
    shards = sizes["dp_shard"] * cp * tp
    room = shards // expert_tp
    amount = f"dp_shard={sizes['dp_shard']} * cp={cp} * tp={tp} / etp={expert_tp} = {room}"
    check_divides("ep", experts, room, amount)
    dense = DeviceMesh(
        Layout.contiguous(list(sizes.values())),
        sizes,
        device_type=device_type,
        views=(
            ("batch", ("dp_replicate", "dp_shard")),
            ("loss", ("dp_replicate", "dp_shard", "cp")),
            ("fsdp", ("dp_shard", "cp")),
        ),
    )
    if experts == 1:
        return ParallelMeshes(dense, None)
    names = ("pp", "dp_replicate", "efsdp", "ep", "etp")
    layout = Layout.contiguous(
        (sizes["pp"], sizes["dp_replicate"], shards // (experts * expert_tp), experts, expert_tp)
    )
    return ParallelMeshes(dense, DeviceMesh(layout, names, device_type=device_type, data_dims=()))
