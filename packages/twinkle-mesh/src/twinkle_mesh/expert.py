"""The expert view: the ranks of a mesh over the dims of a mixture-of-experts layer.

The rule is Megatron's. In the order of dims, etp is at the place of tp, ep_shard (expert data parallelism) is at the
place of dp, and ep has its own place. Pipeline groups are the same as those of the dense layers.

Short: the rule is one, and is checked against Megatron-LM's on its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .layout import Layout
from .sizes import check_divides

if TYPE_CHECKING:
    from .mesh import DeviceMesh

EXPERT_DIMS = ("ep_shard", "ep", "etp")


def expert_view(mesh: DeviceMesh) -> DeviceMesh:
    """Return the mesh (pp, ep_shard, ep, etp) over the ranks of a mesh; it has one data rank."""
    sizes, order = _sizes(mesh), mesh.expert_order or EXPERT_DIMS
    stages = [mesh.stage(number) for number in range(mesh.size("pp"))]
    if mesh.layout.table is None:
        stages = [sorted(stage) for stage in stages]
    ranks = [rank for stage in stages for rank in stage]
    by_order = Layout.of_ranks(ranks, [len(stages), *(sizes[name] for name in order)])
    layout = by_order.select([[0], *([1 + order.index(name)] for name in EXPERT_DIMS)], [0] * 4)
    return type(mesh)(("pp", *EXPERT_DIMS), layout, mesh.device_type, vpp_size=mesh.vpp_size)


def _sizes(mesh: DeviceMesh) -> dict[str, int]:
    """Return the size of each dim of the expert view without pp."""
    inside = mesh.ep_size * mesh.etp_size
    return {"ep_shard": mesh.world_size // mesh.size("pp") // inside, "ep": mesh.ep_size, "etp": mesh.etp_size}


def checked_order(mesh: DeviceMesh) -> tuple[str, ...]:
    """Return the expert dims of a mesh, outermost first; orders that differ in dims of size 1 are one.

    Raises:
        ValueError: The ranks of a stage cannot be divided so, or the mesh's order names other dims.
    """
    tp, pp, etp = mesh.size("tp"), mesh.size("pp"), mesh.etp_size
    if mesh.ep_size > 1 or etp != tp:
        stage, whole = mesh.world_size // pp, f"world_size={mesh.world_size} / pp_size={pp}"
        check_divides("etp_size", etp, stage, f"the dense world of {stage} ranks ({whole})")
        dense = f"the dense world's {stage // etp} ({whole} / etp_size={etp})"
        check_divides("ep_size", mesh.ep_size, stage // etp, dense)
    steps = dict(zip(mesh.dim_names, mesh.layout.strides, strict=True))
    data = next((steps[name] for name in ("dp", "fsdp", "dp_shard", "dp_replicate") if steps.get(name)), 0)
    inferred = ("etp", "ep_shard", "ep") if 0 < data < steps.get("tp", 0) else EXPERT_DIMS
    if (given := mesh.expert_order) is None:
        return inferred
    if sorted(given) != sorted(EXPERT_DIMS):
        raise ValueError(f"expert_order={given} must name ep_shard, ep and etp, outermost first")
    sizes = _sizes(mesh)
    alike = [name for name in given if sizes[name] > 1] == [name for name in inferred if sizes[name] > 1]
    return inferred if alike else given
