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
@given(st.from_type(DeviceMesh))
def test_json_and_pickle_give_an_equal_mesh(mesh: DeviceMesh) -> None:
    mesh.coordinate(mesh.ranks[0])  # what a mesh keeps to look up is no part of it
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
    assert len(json.dumps(mesh.to_dict())) < 400
    assert len(pickle.dumps(mesh)) < 400


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dim_names": ["dp"]}, "dim_names=('dp',) must name the 2 dims"),
        ({"dim_names": ["dp", "dp"]}, "dim name 'dp'"),
        ({"dim_names": ["dp", 3]}, "not the state of a DeviceMesh"),
        ({"layout": {"shape": [2, 2]}}, "not the state of a DeviceMesh"),
        ({"layout": {"shape": [2, 2], "strides": [1, 1]}}, "give a rank twice"),
        ({"layout": {"shape": [2, 2], "strides": [-2, 1]}}, "stride=-2 must be at least 1"),
        ({"layout": {"shape": [2, 2], "strides": [2, 1], "offset": -1}}, "offset=-1"),
        ({"layout": {"shape": [2, 2], "strides": [2, 1], "table": [0, 1, 1, 2]}}, "ranks holds 1 2 times"),
        ({"layout": {"shape": [2, 2], "strides": [2, 1], "table": [0, 1, 2]}}, "a table of 3 ranks does not fit"),
        ({"data_dims": ["pp"]}, "the mesh has no dim 'pp'; use one of 'dp', 'tp'"),
        ({"expert_order": ["ep"]}, "expert_order=('ep',) must name ep_shard, ep and etp"),
        ({"ep_size": 3}, "ep_size=3 does not divide"),
        ({"ulysses_size": "2"}, "ulysses_size='2' must be a whole number"),
        ({"views": [["dp", ["dp"]]]}, "dim name 'dp'"),
        ({"views": [["all", ["pp"]]]}, "the mesh has no dim 'pp'"),
        ({"nodes": 2}, "not the state of a DeviceMesh"),
    ],
)
def test_a_state_is_checked_like_any_other_input(change: dict[str, Any], said: str) -> None:
    state = {**DeviceMesh.from_sizes(dp_size=2, tp_size=2).to_dict(), **change}
    with pytest.raises(ValueError, match=re.escape(said)):
        DeviceMesh.from_dict(state)
