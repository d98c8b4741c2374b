from __future__ import annotations

import copy
import itertools
import math
import re
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from twinkle_mesh import DeviceMesh

law = settings(settings.get_profile("mesh"))
meshes = st.from_type(DeviceMesh)
sizes = st.fixed_dictionaries({}, optional={name: st.integers(1, 4) for name in ("fsdp", "pp", "dp", "cp", "tp")})


@law
@given(sizes)
def test_ranks_are_numbered_row_major_over_the_default_order(given_sizes: dict[str, int]) -> None:
    fields: dict[str, Any] = {f"{name}_size": size for name, size in given_sizes.items()}
    mesh = DeviceMesh.from_sizes(**fields)
    names = [name for name in ("fsdp", "pp", "dp", "cp", "tp") if name in given_sizes or name == "dp"]
    assert mesh.dim_names == tuple(names)
    coordinates = itertools.product(*(range(given_sizes.get(name, 1)) for name in names))
    for rank, coords in enumerate(coordinates):
        assert mesh.coordinate(rank) == dict(zip(names, coords, strict=True))
    assert mesh.world_size == math.prod(given_sizes.values()) == rank + 1


@law
@given(meshes)
def test_coordinates_and_ranks_are_a_bijection(mesh: DeviceMesh) -> None:
    ranks = list(mesh.ranks)
    assert len(set(ranks)) == len(ranks) == mesh.world_size == math.prod(mesh.shape)
    coordinates = [mesh.coordinate(rank) for rank in ranks]
    assert [tuple(coords.values()) for coords in coordinates] == list(itertools.product(*map(range, mesh.shape)))
    assert [mesh.rank_at(**coords) for coords in coordinates] == ranks
    assert all(rank in mesh for rank in ranks)


@law
@given(meshes, st.data())
def test_groups_partition_the_ranks_and_are_seen_alike_by_their_members(mesh: DeviceMesh, data: st.DataObject) -> None:
    dims = data.draw(st.lists(st.sampled_from(mesh.dim_names), unique=True) if mesh.dim_names else st.just([]))
    groups = mesh.groups(dims)
    assert len(groups) == mesh.world_size // math.prod(mesh.size(dim) for dim in dims)
    assert sorted(rank for group in groups for rank in group) == sorted(mesh.ranks)
    assert [group[0] for group in groups] == sorted(group[0] for group in groups)
    for group in groups:
        fixed = {tuple((k, v) for k, v in mesh.coordinate(rank).items() if k not in dims) for rank in group}
        assert len(fixed) == 1
        assert all(mesh.group(dims, rank) == group for rank in group)


@law
@given(meshes, st.integers(-2, 200))
def test_a_rank_outside_the_mesh_is_an_error_everywhere(mesh: DeviceMesh, rank: int) -> None:
    if rank in list(mesh.ranks):
        return
    for look in (
        lambda: mesh.coordinate(rank),
        lambda: mesh.group(mesh.dim_names, rank),
        lambda: mesh.data_rank(rank),
        lambda: mesh.get_slice(10, rank),
        lambda: mesh.same_data(rank),
        lambda: mesh.submesh((), rank),
    ):
        with pytest.raises(ValueError, match=f"rank={rank}"):
            look()
    assert rank not in mesh


@law
@given(meshes)
def test_equal_ranks_make_equal_meshes(mesh: DeviceMesh) -> None:
    ranks = np.array(list(mesh.ranks)).reshape(mesh.shape)
    if not mesh.dim_names:
        return
    by_array = DeviceMesh.from_ranks(ranks, mesh.dim_names, data_dims=())
    assert by_array == DeviceMesh.from_ranks(ranks.tolist(), mesh.dim_names, data_dims=())
    assert hash(by_array) == hash(DeviceMesh.from_ranks(ranks.tolist(), mesh.dim_names, data_dims=()))
    assert list(by_array.ranks) == list(mesh.ranks)


def test_equal_layouts_are_equal_values() -> None:
    built = DeviceMesh.from_sizes(dp_size=2, pp_size=2, tp_size=2, ulysses_size=2, ep_size=2, vpp_size=2)
    listed = DeviceMesh.from_ranks(
        [[[0, 1], [2, 3]], [[4, 5], [6, 7]]], ("pp", "dp", "tp"), ulysses_size=2, ep_size=2, vpp_size=2
    )
    assert built == listed
    assert len({built, listed}) == 1
    assert built != DeviceMesh.from_sizes(dp_size=2, pp_size=2, tp_size=2)
    assert DeviceMesh.from_sizes(dp_size=2) != DeviceMesh.from_sizes(tp_size=2)
    assert DeviceMesh.from_sizes(tp_size=2, etp_size=2) == DeviceMesh.from_sizes(tp_size=2)
    assert DeviceMesh.from_sizes(dp_size=4, order="tp-cp-ep-dp-pp") == DeviceMesh.from_sizes(dp_size=4)


def test_reading() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=2, tp_size=4, device_type="GPU", etp_size=2)
    assert (mesh.world_size, mesh.dim_names, mesh.shape) == (8, ("dp", "tp"), (2, 4))
    assert [mesh.size(dim) for dim in ("dp", "tp", "pp", "cp", "fsdp")] == [2, 4, 1, 1, 1]
    assert (mesh.ulysses_size, mesh.ep_size, mesh.etp_size, mesh.vpp_size) == (1, 1, 2, 1)
    assert mesh.device_type == "cuda"
    assert not mesh.sequence_parallel
    assert mesh.size("nothing") == 1
    assert mesh.has_dim("tp")
    assert not mesh.has_dim("pp")
    assert DeviceMesh.from_sizes(tp_size=4).etp_size == 4
    assert mesh.group("pp", 3) == [3]
    assert mesh.group((), 3) == [3]
    assert mesh.group(("tp", "dp"), 3) == list(range(8))


def test_a_mesh_is_immutable() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=2)
    with pytest.raises(AttributeError, match="device_type"):
        mesh.device_type = "cpu"  # type: ignore[misc]  # the point of the test
    with pytest.raises(AttributeError, match="device_type"):
        del mesh.device_type
    mesh.ranks.append(5)
    assert mesh.ranks == [0, 1]
    assert copy.deepcopy(mesh) == mesh


@pytest.mark.parametrize(
    ("coords", "said"),
    [
        ({"dp": 0, "tp": 4}, "tp=4 is outside [0, 1]"),
        ({"dp": 0, "tp": -1}, "tp=-1 must be at least 0"),
        ({"pp": 0}, "the mesh has no dim 'pp'; use one of 'dp', 'tp'"),
        ({"dp": 1}, "rank_at needs tp= as well, in [0, 1]"),
    ],
)
def test_errors_of_rank_at(coords: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        DeviceMesh.from_sizes(dp_size=2, tp_size=2).rank_at(**coords)


def test_an_unknown_dim_is_an_error() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=2)
    for look in (mesh.group, mesh.groups):
        with pytest.raises(ValueError, match="'dpp'"):
            look("dpp")


def test_lookups_do_not_grow_with_the_number_of_ranks() -> None:
    mesh = DeviceMesh.from_sizes(world_size=131_072, tp_size=8, pp_size=16)
    assert mesh.layout.strides == (8192, 8, 1) and mesh.layout.table is None
    assert mesh.coordinate(131_071) == {"pp": 15, "dp": 1023, "tp": 7}
    assert mesh.group("tp", 131_071) == list(range(131_064, 131_072))
    assert mesh.get_slice(4096, 131_071) == slice(4092, 4096)
    assert mesh.submesh("pp", 9).layout.strides == (8192,)
    assert DeviceMesh.from_ranks(np.arange(7, 31, 3).reshape(2, 4).T, ("tp", "dp")).layout.strides == (3, 12)


def test_a_mesh_shows_its_ranks_and_data_ranks() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=2, pp_size=2, tp_size=2)
    text = mesh.describe(5)
    for part in ("8 ranks · data world size 2", "pp=1\n", "[5]:0", "7:1", "dp group [5, 7]"):
        assert part in text
    assert len(DeviceMesh.from_sizes(world_size=131_072, tp_size=64, pp_size=64).describe().splitlines()) < 400
    assert mesh.expert.describe(0) and DeviceMesh.from_ranks([3], "dp").describe(3)
