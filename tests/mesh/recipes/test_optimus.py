from __future__ import annotations

import re

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from twinkle_mesh.recipes import OptimusMeshes, optimus_meshes

law = settings(settings.get_profile("mesh"))


@law
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
def test_shards_fill_a_node_and_replicas_fill_the_nodes(nodes: int, shards: int, tp: int) -> None:
    local = shards * tp
    meshes = optimus_meshes(world_size=nodes * local, local_world_size=local, tp_size=tp)
    parallel, physical = meshes
    assert isinstance(meshes, OptimusMeshes)
    assert (parallel.dim_names, parallel.shape) == (("dp_replicate", "dp_shard", "tp"), (nodes, shards, tp))
    assert (physical.dim_names, physical.shape) == (("nodes", "local_ranks"), (nodes, local))
    for rank in range(nodes * local):
        assert parallel.data_rank(rank) == rank // tp
        assert parallel.coordinate(rank)["tp"] == rank % tp
        assert physical.coordinate(rank) == {"nodes": rank // local, "local_ranks": rank % local}
        assert parallel.node(rank) == rank // local
    assert parallel.nodes_spanned(("dp_shard", "tp")) == (1, 1)


def test_shards_can_be_given() -> None:
    parallel, _ = optimus_meshes(world_size=16, local_world_size=8, tp_size=2, sharding_world_size=2, device_type="cpu")
    assert parallel.shape == (4, 2, 2)
    assert parallel.device_type == "cpu"
    wide, _ = optimus_meshes(world_size=16, local_world_size=8, sharding_world_size=16)
    assert wide.shape == (1, 16, 1)
    assert optimus_meshes(world_size=8, local_world_size=8, sharding_world_size=0).parallel_mesh.shape == (1, 8, 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"local_world_size": 6}, "local_world_size=6 does not divide world_size=16; use 1, 2, 4 or 8"),
        ({"tp_size": 3}, "tp_size=3 does not divide world_size=16; use 1, 2, 4 or 8"),
        ({"local_world_size": 2, "tp_size": 4}, "tp_size=4 does not divide local_world_size=2; use 1 or 2"),
        ({"sharding_world_size": 3}, "sharding_world_size=3 does not divide world_size / tp_size=16; use 1, 2, 4 or 8"),
        ({"sharding_world_size": -1}, "sharding_world_size=-1 must be at least 1"),
        ({"world_size": 0}, "world_size=0 must be at least 1"),
    ],
)
def test_errors(arguments: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        optimus_meshes(**{"world_size": 16, "local_world_size": 8, **arguments})  # type: ignore[arg-type]  # sizes only
