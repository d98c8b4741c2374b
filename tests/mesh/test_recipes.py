from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from twinkle_mesh import DDPConfig, FSDP2Config, MegatronFSDPConfig, create_device_mesh

if TYPE_CHECKING:
    from twinkle_mesh import DeviceMesh

law = settings(settings.get_profile("mesh"))
small = st.integers(1, 3)


def fsdp2(**arguments: Any) -> tuple[DeviceMesh, DeviceMesh | None]:
    dense, experts = create_device_mesh(FSDP2Config(), **arguments)
    assert dense is not None
    return dense, experts


def test_the_example_of_the_source() -> None:
    dense, experts = create_device_mesh(
        FSDP2Config(sequence_parallel=True), tp_size=2, pp_size=1, dp_replicate_size=2, world_size=8
    )
    assert experts is None
    assert dense is not None
    assert dense.dim_names == ("pp", "dp_replicate", "dp_shard", "cp", "tp")
    assert dense.shape == (1, 2, 2, 1, 2)
    assert dense.sequence_parallel
    assert dense["dp"].ranks == [0, 2, 4, 6]
    assert dense["dp_shard_cp"].ranks == [0, 2]
    assert dense["dp_cp"].ranks == [0, 2, 4, 6]
    assert dense["dp_replicate"].ranks == [0, 4]
    assert (dense.size("dp"), dense.size("dp_cp"), dense.data_world_size) == (4, 4, 4)


@settings(law, max_examples=15)
@given(small, small, small, small, small)
def test_fsdp2_is_row_major_and_its_views_are_flattened_dims(pp: int, rep: int, shard: int, cp: int, tp: int) -> None:
    sizes = (pp, rep, shard, cp, tp)
    world = pp * rep * shard * cp * tp
    dense, _ = fsdp2(dp_replicate_size=rep, tp_size=tp, pp_size=pp, cp_size=cp, world_size=world)
    assert (
        dense
        == fsdp2(dp_size=rep * shard, dp_replicate_size=rep, tp_size=tp, pp_size=pp, cp_size=cp, world_size=world)[0]
    )
    names = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
    assert dense.shape == sizes
    views = {"dp": names[1:3], "dp_shard_cp": names[2:4], "dp_cp": names[1:4]}
    for rank, coords in enumerate(itertools.product(*map(range, sizes))):
        assert dense.coordinate(rank) == dict(zip(names, coords, strict=True))
        assert dense.data_rank(rank) == coords[1] * shard + coords[2]
        for view, dims in views.items():
            fixed = {name: c for name, c in zip(names, coords, strict=True) if name not in dims}
            group = [r for r in range(world) if fixed.items() <= dense.coordinate(r).items()]
            assert dense.submesh(view, rank).ranks == group
            assert dense.group(view, rank) == group


@law
@given(small, small, small, small, st.integers(2, 12))
def test_the_moe_mesh_covers_every_rank(pp: int, dp: int, cp: int, tp: int, ep: int) -> None:
    world, stage = pp * dp * cp * tp, dp * cp * tp
    arguments = {"tp_size": tp, "pp_size": pp, "cp_size": cp, "ep_size": ep, "world_size": world}
    if stage % ep:
        with pytest.raises(ValueError, match=f"ep_size={ep}"):
            fsdp2(**arguments)
        return
    dense, experts = fsdp2(**arguments)
    assert experts is not None
    assert experts.dim_names == ("pp", "ep_shard", "ep")
    assert experts.shape == (pp, world // (pp * ep), ep)
    assert experts.ranks == list(range(world))
    assert experts.groups("pp") == dense.groups("pp")
    assert (dense.ep_size, dense.etp_size) == (ep, 1)


@pytest.mark.parametrize(("cp", "views"), [(1, ()), (2, (("dp_cp", ("dp", "cp")),))])
def test_megatron_fsdp(cp: int, views: tuple[object, ...]) -> None:
    mesh, experts = create_device_mesh(MegatronFSDPConfig(backend="gloo"), tp_size=2, cp_size=cp, world_size=8)
    assert experts is None
    assert mesh is not None
    assert (mesh.dim_names, mesh.shape) == (("dp", "cp", "tp"), (4 // cp, cp, 2))
    assert mesh.views == views
    assert mesh.device_type == "cpu"
    assert mesh.group("dp_cp" if cp > 1 else "dp", 0) == [0, 2, 4, 6]


def test_ddp_has_no_mesh() -> None:
    assert create_device_mesh(DDPConfig(), world_size=8) == (None, None)
    assert create_device_mesh(DDPConfig(), dp_size=8, world_size=8) == (None, None)


@pytest.mark.parametrize("dp_size", [None, 0, -1, 4])
@pytest.mark.parametrize("replicas", [None, 0, -1, 1])
def test_sizes_that_are_none_or_not_positive_are_inferred(dp_size: int | None, replicas: int | None) -> None:
    dense, _ = fsdp2(dp_size=dp_size, dp_replicate_size=replicas, tp_size=2, world_size=8)
    assert dense.shape == (1, 1, 4, 1, 2)
    assert dense.device_type == "cuda"


@pytest.mark.parametrize(
    ("config", "arguments", "said"),
    [
        (
            MegatronFSDPConfig(),
            {"dp_replicate_size": 2},
            "dp_replicate_size=2 needs FSDP2Config, not MegatronFSDPConfig",
        ),
        (FSDP2Config(), {"tp_size": 3}, "tp_size=3 does not divide world_size=8; use 1, 2, 4 or 8"),
        (FSDP2Config(), {"tp_size": 3, "pp_size": 2}, "tp_size=3 * pp_size=2 = 6 does not divide world_size=8"),
        (MegatronFSDPConfig(), {"cp_size": 5}, "cp_size=5 does not divide world_size=8"),
        (FSDP2Config(), {"dp_size": 2}, "dp_size=2 is not world_size=8; use world_size=2, or one size of -1"),
        (MegatronFSDPConfig(), {"dp_size": 2, "tp_size": 2}, "dp_size=2 * tp_size=2 = 4 is not world_size=8"),
        (DDPConfig(), {"dp_size": 4}, "dp_size=4 is not world_size=8"),
        (
            FSDP2Config(),
            {"dp_replicate_size": 3},
            "dp_replicate_size=3 does not divide dp_size=8; use 1, 2, 4 or 8",
        ),
        (FSDP2Config(), {"ep_size": 3}, "ep_size=3 does not divide the dense world's 8"),
        (FSDP2Config(), {"ep_size": 8, "pp_size": 2}, "ep_size=8 does not divide the dense world's 4"),
        (
            MegatronFSDPConfig(),
            {"pp_size": 2},
            "pp_size=2 is not supported with MegatronFSDPConfig; use pp_size=1",
        ),
        (MegatronFSDPConfig(), {"ep_size": 2}, "ep_size=2 is not supported with MegatronFSDPConfig"),
        (DDPConfig(), {"tp_size": 2}, "tp_size=2 is not supported with DDPConfig"),
        (FSDP2Config(), {"tp_size": 0}, "tp_size=0 must be at least 1"),
        (FSDP2Config(), {"world_size": 0}, "world_size=0 must be at least 1"),
        (FSDP2Config(), {"world_size": 1, "dp_size": 2}, "dp_size=2 is not world_size=1; use world_size=2"),
        (FSDP2Config(), {"dp_size": 2.5}, "dp_size=2.5 must be a whole number"),
        ("fsdp2", {}, "config='fsdp2' is unknown; use FSDP2Config, MegatronFSDPConfig or DDPConfig"),
    ],
)
def test_errors(config: Any, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        create_device_mesh(config, **{"world_size": 8, **arguments})
