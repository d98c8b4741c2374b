from __future__ import annotations

import re
import warnings
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from twinkle_mesh import DeviceMesh, Nodes

law = settings(settings.get_profile("mesh"))


@law
@given(st.from_type(DeviceMesh), st.integers(1, 9), st.data())
def test_groups_span_the_nodes_of_their_ranks(mesh: DeviceMesh, per_node: int, data: st.DataObject) -> None:
    dims = data.draw(st.lists(st.sampled_from(mesh.dim_names), unique=True) if mesh.dim_names else st.just([]))
    highest = max(mesh.ranks)
    unequal = data.draw(st.booleans())
    if unequal:
        sizes = [per_node + index % 2 for index in range(highest // per_node + 1)]
        starts = [sum(sizes[:index]) for index in range(len(sizes) + 1)]
        mesh = mesh.with_nodes(sizes, tp_crossing="allow")
    else:
        starts = [index * per_node for index in range(highest // per_node + 2)]
        mesh = mesh.with_nodes(ranks_per_node=per_node, tp_crossing="allow")
    home = {rank: max(node for node, start in enumerate(starts) if start <= rank) for rank in mesh.ranks}
    assert {rank: mesh.node(rank) for rank in mesh.ranks} == home
    spans = [len({home[rank] for rank in group}) for group in mesh.groups(dims)]
    assert mesh.nodes_spanned(dims) == (min(spans), max(spans))
    crossing = [group for group, span in zip(mesh.groups(dims), spans, strict=True) if span > 1]
    assert list(mesh.crossing_groups(dims)) == crossing


def test_equal_nodes_by_number_or_by_size() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=4, tp_size=4)
    assert mesh.with_nodes(2) == mesh.with_nodes(ranks_per_node=8) == mesh.with_nodes(Nodes(8))
    assert mesh.with_nodes(2) == mesh.with_nodes([8, 8]) == mesh.with_nodes(np.array([8, 8]))  # type: ignore[arg-type]  # an array
    assert hash(mesh.with_nodes(2)) == hash(mesh.with_nodes([8, 8]))
    assert mesh.with_nodes(np.int64(2)) == mesh.with_nodes(2)  # type: ignore[arg-type]  # as callers do
    assert mesh.with_nodes(2) != mesh
    assert mesh.with_nodes(2)["tp"].nodes == Nodes(8)
    assert mesh.nodes is None
    assert mesh.with_nodes(2).at(dp=3).node(12) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "with_nodes needs either nodes= or ranks_per_node="),
        ({"nodes": 2, "ranks_per_node": 8}, "with_nodes needs either nodes= or ranks_per_node="),
        ({"nodes": 3}, "nodes=3 does not divide the 16 ranks evenly; use 1, 2, 4 or 8"),
        ({"nodes": 0}, "nodes=0 must be at least 1"),
        ({"nodes": [8, 4]}, "nodes=(8, 4) hold 12 ranks, but the mesh's highest rank is 15; use nodes with 16 ranks"),
        ({"nodes": [16, 0]}, "the number of ranks on a node=0 must be at least 1"),
        ({"nodes": []}, "nodes need either ranks_per_node= or the sizes of all nodes"),
        ({"ranks_per_node": 0}, "ranks_per_node=0 must be at least 1"),
        ({"nodes": 2, "tp_crossing": "ask"}, "tp_crossing='ask' must be one of three; use 'warn', 'refuse' or 'allow'"),
        (
            {"nodes": 8, "tp_crossing": "refuse"},
            "tp_size=4 crosses nodes: group [0, 1, 2, 3] lies on 2 of Nodes(ranks_per_node=2); tensor parallelism "
            "belongs inside a node: make it smaller (2, 1)",
        ),
    ],
)
def test_errors(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        DeviceMesh.from_sizes(dp_size=4, tp_size=4).with_nodes(**arguments)


def test_tp_across_nodes_warns_unless_it_is_allowed() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=4, tp_size=4, order="dp-tp")
    with pytest.warns(UserWarning, match="tp_size=4"):
        mesh.with_nodes(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert mesh.with_nodes(2, tp_crossing="allow").nodes_spanned("tp") == (2, 2)
        assert DeviceMesh.from_sizes(dp_size=4, tp_size=4).with_nodes(4).nodes_spanned("tp") == (1, 1)


def test_a_mesh_without_nodes_says_so() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=4)
    for look in (lambda: mesh.node(0), lambda: mesh.nodes_spanned("dp"), lambda: mesh.crossing_groups("dp")):
        with pytest.raises(ValueError, match=re.escape("the mesh has no nodes; use mesh.with_nodes(")):
            look()
