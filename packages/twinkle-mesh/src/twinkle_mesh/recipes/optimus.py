"""The meshes of Optimus-DL's MeshCollective."""

from __future__ import annotations

from typing import NamedTuple

from twinkle_mesh._messages import nearest_divisors, would
from twinkle_mesh.layout import Layout
from twinkle_mesh.mesh import DeviceMesh
from twinkle_mesh.nodes import Nodes
from twinkle_mesh.sizes import at_least_one


class Meshes(NamedTuple):
    """How the model is parallel, and where the ranks are."""

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
) -> Meshes:
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
    world = at_least_one("world_size", world_size)
    local = at_least_one("local_world_size", local_world_size)
    tp = at_least_one("tp_size", tp_size)
    for name, size, of, total in (
        ("local_world_size", local, "world_size", world),
        ("tp_size", tp, "world_size", world),
        ("tp_size", tp, "local_world_size", local),
    ):
        if total % size:
            raise ValueError(f"{name}={size} does not divide {of}={total}; {would(nearest_divisors(total, size))}")
    shards = at_least_one("sharding_world_size", sharding_world_size) if sharding_world_size else local // tp
    if world % (shards * tp):
        near = nearest_divisors(world // tp, shards)
        raise ValueError(
            f"sharding_world_size={shards} does not divide world_size / tp_size={world // tp}; {would(near)}"
        )
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
    return Meshes(parallel, physical)
