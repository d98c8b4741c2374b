"""Dense and expert groups against Megatron-LM's rule.

Megatron numbers ranks with the order's first dim fastest; a group differs in its own dims only. Dense layers have tp,
cp, dp and pp, experts have expert tp, ep, expert dp and pp in the places of tp, ep, dp and pp.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, example, given, settings

from twinkle_mesh import DeviceMesh

law = settings(settings.get_profile("mesh"))


def megatron(order: str, sizes: dict[str, int], token: str) -> list[list[int]]:
    """List the groups of `token` by counting through all coordinates, sorted by first rank."""
    names = order.split("-")
    groups: dict[tuple[int, ...], list[int]] = {}
    outward = itertools.product(*(range(sizes.get(name, 1)) for name in reversed(names)))
    for rank, coords in enumerate(outward):
        fixed = [c for name, c in zip(reversed(names), coords, strict=True) if name not in token.split("-")]
        groups.setdefault(tuple(fixed), []).append(rank)
    return sorted(groups.values())


def listed(mesh: DeviceMesh, *dims: str) -> list[list[int]]:
    return [list(group) for group in mesh.groups(dims)]


def test_the_published_table_of_sixteen_ranks() -> None:
    # The example in the docstring of Megatron's initialize_model_parallel: tp 2, pp 4 on 16 GPUs.
    mesh = DeviceMesh.from_sizes(world_size=16, tp_size=2, pp_size=4, order="tp-cp-ep-dp-pp")
    assert mesh.groups("dp") == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]
    assert mesh.groups("tp") == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [12, 13], [14, 15]]
    assert mesh.groups("pp") == [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]
    assert mesh == DeviceMesh.from_sizes(world_size=16, tp_size=2, pp_size=4)


@pytest.mark.parametrize(
    ("nodes", "tp", "pp", "cp", "ep"),
    [
        # The shapes of Megatron's test_rank_generator_for_tp_dp_pp, on nodes of 8, up to 256 ranks.
        (1, 8, 1, 1, 1),
        (1, 2, 2, 1, 1),
        (1, 2, 4, 1, 1),
        (3, 8, 3, 1, 1),
        (4, 2, 4, 1, 1),
        (8, 8, 8, 1, 1),
        (8, 2, 1, 1, 4),
        (8, 2, 2, 2, 4),
        (8, 2, 1, 4, 8),
        (8, 2, 2, 2, 8),
        (16, 4, 8, 1, 1),
        (16, 4, 8, 1, 4),
        (16, 4, 8, 4, 1),
        (32, 4, 8, 1, 4),
        (32, 8, 8, 4, 1),
    ],
)
def test_the_published_closed_forms(nodes: int, tp: int, pp: int, cp: int, ep: int) -> None:
    world = nodes * 8
    mesh = DeviceMesh.from_sizes(
        world_size=world, tp_size=tp, pp_size=pp, cp_size=cp, ep_size=ep, order="tp-cp-ep-dp-pp"
    )
    stage = world // pp
    starts = range(0, world, stage)
    assert listed(mesh, "tp") == [list(range(i, i + tp)) for i in range(0, world, tp)]
    assert listed(mesh, "pp") == [list(range(i, world, stage)) for i in range(stage)]
    assert listed(mesh, "dp") == [
        list(range(start + j, start + stage, cp * tp)) for start in starts for j in range(cp * tp)
    ]
    assert listed(mesh, "dp", "cp") == [
        list(range(start + j, start + stage, tp)) for start in starts for j in range(tp)
    ]
    assert listed(mesh, "cp") == [
        list(range(start + k, start + tp * cp, tp)) for start in range(0, world, tp * cp) for k in range(tp)
    ]
    assert listed(mesh.expert, "ep", "etp") == [list(range(i, i + ep * tp)) for i in range(0, world, ep * tp)]
    assert listed(mesh.expert, "ep_shard") == [
        list(range(start + j, start + stage, ep * tp)) for start in starts for j in range(ep * tp)
    ]
    assert listed(mesh.expert, "pp") == listed(mesh, "pp")


orders = st.permutations(["tp", "cp", "ep", "dp", "pp"]).map("-".join)
small = st.integers(1, 3)


@law
@given(orders, small, small, small, small, small, st.none() | small)
def test_any_order_gives_megatrons_groups(
    order: str, tp: int, cp: int, pp: int, dp: int, ep: int, etp: int | None
) -> None:
    stage, experts = tp * cp * dp, ep * (etp or tp)
    assume(stage % experts == 0)
    mesh = DeviceMesh.from_sizes(tp_size=tp, cp_size=cp, pp_size=pp, dp_size=dp, ep_size=ep, etp_size=etp, order=order)
    dense = {"tp": tp, "cp": cp, "pp": pp, "dp": dp}
    for token in ("tp", "dp", "pp", "cp", "tp-pp", "dp-cp", "tp-dp", "tp-dp-cp"):
        assert listed(mesh, *token.split("-")) == megatron(order, dense, token)
    sparse = {"tp": etp or tp, "ep": ep, "pp": pp, "dp": stage // experts}
    # Megatron itself refuses experts whose pipeline groups differ from the dense ones.
    assume(megatron(order, sparse, "pp") == megatron(order, dense, "pp"))
    names = {"tp": "etp", "ep": "ep", "dp": "ep_shard", "pp": "pp"}
    for token in ("tp", "ep", "dp", "pp", "tp-ep", "tp-ep-pp"):
        ours = [list(group) for group in mesh.expert.groups([names[name] for name in token.split("-")])]
        assert sorted(map(sorted, ours)) == sorted(map(sorted, megatron(order, sparse, token)))
        if "-" not in token:
            assert ours == megatron(order, sparse, token)


def tp_is_innermost(mesh: DeviceMesh) -> bool:
    """Whether the ranks of each tp group follow each other in their pipeline stage."""
    if "tp" not in mesh.dim_names:
        return False
    stages = [sorted(stage) for stage in mesh.groups([name for name in mesh.dim_names if name != "pp"])]
    neighbours = [
        stage[first : first + mesh.size("tp")] for stage in stages for first in range(0, len(stage), mesh.size("tp"))
    ]
    return sorted(map(sorted, mesh.groups("tp"))) == sorted(neighbours)


@law
@given(st.from_type(DeviceMesh))
@example(DeviceMesh.from_ranks([[0, 2], [1, 3]], ("cp", "tp")))
def test_experts_cover_the_same_ranks_and_stages(mesh: DeviceMesh) -> None:
    experts = mesh.expert
    assert experts.dim_names == ("pp", "ep_shard", "ep", "etp")
    assert (experts.size("pp"), experts.size("ep"), experts.size("etp")) == (
        mesh.size("pp"),
        mesh.ep_size,
        mesh.etp_size,
    )
    assert sorted(experts.ranks) == sorted(mesh.ranks)
    for rank in mesh.ranks:
        assert experts.coordinate(rank)["pp"] == mesh.coordinate(rank).get("pp", 0)
    # As in Megatron, cp does not place the experts: one that lies inside tp has other groups.
    plain = mesh.ep_size == 1 and mesh.etp_size == mesh.size("tp") and mesh.expert_order == ("ep_shard", "ep", "etp")
    if plain and mesh.layout.table is None and tp_is_innermost(mesh):
        assert sorted(map(sorted, experts.groups("etp"))) == sorted(map(sorted, mesh.groups("tp")))


@law
@given(
    st.sampled_from(["dp", "fsdp"]).flatmap(lambda shard: st.permutations(["tp", shard, "pp"])),
    st.permutations(["tp", "dp", "fsdp", "pp"]),
    small,
    small,
    small,
)
def test_tensor_parallel_groups_are_the_same_for_experts_wherever_their_data_is_split(
    order: list[str], names: list[str], tp: int, data: int, pp: int
) -> None:
    shard = "dp" if "dp" in order else "fsdp"
    sizes = {"tp": tp, "pp": pp, shard: data}
    dp, fsdp = sizes.get("dp"), sizes.get("fsdp")
    by_order = DeviceMesh.from_sizes(tp_size=tp, pp_size=pp, dp_size=dp, fsdp_size=fsdp, order="-".join(order))
    ranks = np.arange(tp * data * pp).reshape([sizes.get(name, 1) for name in names])
    for mesh in (by_order, DeviceMesh.from_ranks(ranks, names)):
        assert list(map(list, mesh.expert.groups("etp"))) == list(map(list, mesh.groups("tp")))
        assert list(map(list, mesh.expert.groups("ep_shard"))) == list(map(list, mesh.groups(shard)))


def test_experts_that_cut_across_the_dense_sizes() -> None:
    mesh = DeviceMesh.from_sizes(fsdp_size=3, pp_size=2, dp_size=2, ep_size=3)
    assert mesh.groups("pp") == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11]]
    assert mesh.expert.groups("pp") == mesh.groups("pp")
    assert mesh.expert.groups("ep") == [[0, 1, 4], [2, 3, 6], [5, 8, 9], [7, 10, 11]]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            {"order": "tp-xp"},
            "order='tp-xp' holds 'xp', unknown or twice; join some of tp, cp, ep, dp, pp, fsdp by '-'",
        ),
        ({"order": "tp-dp-tp"}, "order='tp-dp-tp' holds 'tp', unknown or twice"),
        (
            {"order": "tp-dp", "pp_size": 2},
            "order='tp-dp' does not place pp, which is larger than 1; use 'tp-dp-pp'",
        ),
        ({"order": "tp-dp", "dp_size": 2, "ep_size": 2}, "order='tp-dp' does not place ep"),
        ({"order": ""}, "order='' holds ''"),
    ],
)
def test_errors_of_orders(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        DeviceMesh.from_sizes(**arguments)


def test_dims_that_an_order_leaves_out_are_outermost() -> None:
    assert DeviceMesh.from_sizes(fsdp_size=2, tp_size=2, dp_size=2, order="dp-tp").dim_names == ("fsdp", "tp", "dp")
    assert DeviceMesh.from_sizes(fsdp_size=2, tp_size=2, order="fsdp-tp").dim_names == ("dp", "tp", "fsdp")
    assert DeviceMesh.from_sizes(tp_size=2, pp_size=1, order="TP-DP").dim_names == ("pp", "dp", "tp")
    outer = DeviceMesh.from_sizes(tp_size=2, dp_size=4, ep_size=2, order="dp-ep-tp")
    assert outer.expert_order == ("etp", "ep", "ep_shard")
    assert outer.expert.groups("ep_shard") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert outer.expert.groups("ep") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert outer.expert.groups("etp") == [[0, 4], [1, 5], [2, 6], [3, 7]]
