from __future__ import annotations

import json
import pickle
import re
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from twinkle_mesh import DeviceMesh

law = settings(settings.get_profile("mesh"))


@law
@given(st.from_type(DeviceMesh), st.booleans())
def test_json_and_pickle_give_an_equal_mesh(mesh: DeviceMesh, on_nodes: bool) -> None:
    if on_nodes:
        mesh = mesh.with_nodes(ranks_per_node=4, tp_crossing="allow")
    if mesh.dim_names:
        mesh = mesh.with_views(everything=mesh.dim_names)
    for copy in (
        DeviceMesh.from_dict(json.loads(json.dumps(mesh.to_dict(), sort_keys=True))),
        pickle.loads(pickle.dumps(mesh)),
    ):
        assert copy == mesh
        assert hash(copy) == hash(mesh)
        assert repr(copy) == repr(mesh)
        assert copy.expert == mesh.expert


def test_a_state_is_small_for_any_world_size() -> None:
    mesh = DeviceMesh.from_sizes(world_size=131_072, tp_size=8, pp_size=16)
    assert len(json.dumps(mesh.to_dict())) < 300
    assert len(pickle.dumps(mesh)) < 400


def test_reprs() -> None:
    assert repr(DeviceMesh.from_sizes(dp_size=2, tp_size=2)) == "DeviceMesh(dp=2, tp=2, device_type='cuda')"
    mesh = DeviceMesh.from_sizes(
        dp_size=4, tp_size=2, pp_size=2, ep_size=2, etp_size=1, ulysses_size=2, vpp_size=2, order="dp-ep-tp-pp"
    )
    assert repr(mesh) == (
        "DeviceMesh(pp=2, tp=2, dp=4, etp_size=1, ulysses_size=2, ep_size=2, vpp_size=2, "
        "expert_order=etp-ep-ep_shard, device_type='cuda')"
    )
    assert repr(mesh.at(pp=1)["dp"]) == "DeviceMesh(dp=4, offset=8, ulysses_size=2, device_type='cuda')"
    assert repr(mesh["tp"]) == "DeviceMesh(tp=2, strides=(4), device_type='cuda')"
    assert repr(DeviceMesh.from_ranks([3, 0, 1], "dp", device_type="cpu")) == (
        "DeviceMesh(dp=3, ranks=[3, 0, 1], device_type='cpu')"
    )
    listed = DeviceMesh.from_sizes(dp_size=2, cp_size=2).with_views(dp_cp=("dp", "cp")).with_nodes([1, 3])
    assert repr(listed) == (
        "DeviceMesh(dp=2, cp=2, views=(dp_cp: dp*cp), nodes=Nodes(sizes=(1, 3)), device_type='cuda')"
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "the state's version is 2; this package reads version 1"),
        ({"dims": [["dp", 3], ["tp", 2]]}, "the state's dims [['dp', 3], ['tp', 2]] do not fit its ranks"),
        ({"strides": [[[2, 1]], [[2, 1]]]}, "do not fit its ranks"),
        ({"strides": [[[2, 2]], [[2, 1], [1, 1]]]}, "do not fit its ranks"),
        ({"strides": [[[-2, 2], [-1, 1]], [[2, 8]]]}, "do not fit its ranks"),
        ({"dims": [["dp", 0], ["tp", 2]]}, "dp=0 must be at least 1"),
        ({"offset": -1}, "do not fit its ranks"),
        ({"ranks": [0, 1, 1, 2]}, "do not fit its ranks"),
        ({"ranks": [0, 1, 2]}, "do not fit its ranks"),
        ({"dims": None}, "not the state of a DeviceMesh"),
        ({"strides": [3]}, "not the state of a DeviceMesh"),
        ({"strides": [[[2, 1]], [[0, 2]]]}, "do not fit its ranks"),
        ({"data_dims": ["pp"]}, "data_dims=('pp',) names a dim that the mesh does not have; use 'dp' or 'tp'"),
        ({"expert_order": ["ep"]}, "expert_order=('ep',) must name ep_shard, ep and etp"),
        ({"data_dims": 3}, "not the state of a DeviceMesh"),
        ({"ep_size": 3}, "ep_size=3 does not divide"),
    ],
)
def test_a_state_is_checked_like_any_other_input(change: dict[str, Any], said: str) -> None:
    state = {**DeviceMesh.from_sizes(dp_size=2, tp_size=2).to_dict(), **change}
    with pytest.raises(ValueError, match=re.escape(said)):
        DeviceMesh.from_dict(state)
