"""The meshes of Optimus-DL's MeshCollective."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from twinkle_mesh.layout.layout import Layout
from twinkle_mesh.mesh import DeviceMesh
from twinkle_mesh.nodes import Nodes
from twinkle_mesh.rules.checks import at_least_one, check_divides, whole_number
from twinkle_mesh.rules.rule_error import RuleError

if TYPE_CHECKING:
    from collections.abc import Mapping


class OptimusMeshes(NamedTuple):
    """The mesh of the model's parallelism, and the mesh of nodes and their ranks."""

    parallel_mesh: DeviceMesh
    """(dp_replicate, dp_shard, tp)."""
    physical_mesh: DeviceMesh
    """(nodes, local_ranks)."""


def optimus_meshes(
    *,
    world_size: int,
    local_world_size: int,
    tp_size: int = 1,
    sharding_world_size: int | None = None,
    device_type: str = "cuda",
) -> OptimusMeshes:
    """Return the parallel mesh, with tp innermost and inside a node, and the physical mesh.

    Args:
        world_size: Number of ranks.
        local_world_size: Ranks per node.
        tp_size: Tensor parallel ranks; divides `local_world_size`.
        sharding_world_size: Ranks that share the shards of a replica; what is left of a node when None (or 0).
        device_type: torch's name of the device.

    Raises:
        ValueError: when nodes, tp or shards do not divide what they are taken from.
    """
    fields = {
        "world_size": world_size,
        "local_world_size": local_world_size,
        "tp_size": tp_size,
        "sharding_world_size": sharding_world_size,
    }
    try:
        return _meshes(fields, device_type)
    except RuleError as error:
        raise error.fitting(lambda others: _meshes(others, device_type), fields) from None


def _meshes(fields: Mapping[str, object], device_type: str) -> OptimusMeshes:
    world = at_least_one("world_size", fields["world_size"])
    local = at_least_one("local_world_size", fields["local_world_size"])
    tp = at_least_one("tp_size", fields["tp_size"])
    check_divides("local_world_size", local, world, f"world_size={world}")
    check_divides("tp_size", tp, world, f"world_size={world}")
    check_divides("tp_size", tp, local, f"local_world_size={local}")
    given = fields["sharding_world_size"]
    shards = local // tp
    if given is not None and whole_number("sharding_world_size", given) != 0:
        shards = at_least_one("sharding_world_size", given)
    check_divides("sharding_world_size", shards, world // tp, f"world_size / tp_size={world // tp}")
    nodes = Nodes(local)
    parallel = DeviceMesh(
        Layout.contiguous((world // (shards * tp), shards, tp)),
        ("dp_replicate", "dp_shard", "tp"),
        device_type=device_type,
        nodes=nodes,
    )
    physical = DeviceMesh(
        Layout.contiguous((world // local, local)), ("nodes", "local_ranks"), device_type=device_type, nodes=nodes
    )
    return OptimusMeshes(parallel, physical)
