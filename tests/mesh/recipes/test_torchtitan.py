from __future__ import annotations

import re

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from twinkle_mesh.recipes import torchtitan_meshes

law = settings(settings.get_profile("mesh"))
small = st.integers(1, 3)


@law
@given(small, small, small, small, small)
def test_views_are_what_torchtitan_flattens(rep: int, shard: int, cp: int, tp: int, pp: int) -> None:
    world = rep * shard * cp * tp * pp
    meshes = torchtitan_meshes(world_size=world, dp_replicate=rep, cp=cp, tp=tp, pp=pp)
    assert meshes == torchtitan_meshes(world_size=world, dp_replicate=rep, dp_shard=shard, cp=cp, tp=tp, pp=pp)
    dense = meshes.dense
    assert meshes.expert is None
    assert dense.dim_names == ("pp", "dp_replicate", "dp_shard", "cp", "tp")
    assert dense.shape == (pp, rep, shard, cp, tp)
    assert dense.data_world_size == dense.size("batch") == rep * shard
    assert dense.size("loss") == rep * shard * cp
    assert dense.size("fsdp") == shard * cp
    # pp, batch, cp, tp is how torchtitan lays out data; pp, dp_replicate, fsdp, tp how it lays out parameters.
    assert [dense.data_rank(rank) for rank in range(world)] == [
        rank // (cp * tp) % (rep * shard) for rank in range(world)
    ]
    assert dense["pp", "dp_replicate", "fsdp", "tp"].ranks == range(world)
    assert dense["loss"].ranks == range(0, rep * shard * cp * tp, tp)


@pytest.mark.parametrize(
    ("arguments", "shape"),
    [
        ({"tp": 2, "ep": 4}, (1, 1, 2, 4, 2)),
        ({"tp": 2, "ep": 4, "etp": 1}, (1, 1, 4, 4, 1)),
        ({"tp": 2, "cp": 2, "ep": 4, "etp": 2}, (1, 1, 2, 4, 2)),
        ({"dp_replicate": 2, "pp": 2, "ep": 2}, (2, 2, 2, 2, 1)),
        ({"ep": 16}, (1, 1, 1, 16, 1)),
    ],
)
def test_experts_take_ranks_of_a_replica(arguments: dict[str, int], shape: tuple[int, ...]) -> None:
    meshes = torchtitan_meshes(world_size=16, **arguments)  # type: ignore[arg-type]  # device_type is not among them
    assert meshes.expert is not None
    assert meshes.expert.dim_names == ("pp", "dp_replicate", "efsdp", "ep", "etp")
    assert meshes.expert.shape == shape
    assert meshes.expert.ranks == range(16)
    assert meshes.expert.groups("pp") == meshes.dense.groups("pp")
    assert meshes.expert.groups("dp_replicate") == meshes.dense.groups("dp_replicate")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"tp": 3}, "tp=3 does not divide world_size=16; use 1, 2, 4 or 8"),
        ({"tp": 3, "pp": 5}, "pp=5 * tp=3 = 15 does not divide world_size=16; use world_size=15 or 30"),
        (
            {"tp": 2, "dp_shard": 2},
            "dp_shard=2 * tp=2 = 4 is not world_size=16; use pp=4, dp_replicate=4, dp_shard=8, cp=4",
        ),
        ({"dp_shard": 0}, "dp_shard=0 must be at least 1"),
        ({"dp_replicate": -1}, "dp_replicate=-1 must be at least 1"),
        ({"tp": 2, "ep": 3}, "ep=3 does not divide dp_shard=8 * cp=1 * tp=2 / etp=2 = 8; use 1, 2, 4 or 8"),
        ({"tp": 4, "ep": 2, "etp": 2}, "etp=2 must be 1 or tp=4; use 1 or 4"),
        ({"world_size": 0}, "world_size=0 must be at least 1"),
        ({"dp_shard": 2, "world_size": 1}, "dp_shard=2 is not world_size=1"),
    ],
)
def test_errors(arguments: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        torchtitan_meshes(**{"world_size": 16, **arguments})  # type: ignore[arg-type]  # device_type is not among them
