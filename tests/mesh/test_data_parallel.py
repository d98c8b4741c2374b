from __future__ import annotations

import re

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from twinkle_mesh import DeviceMesh, current_rank, use_rank

law = settings(settings.get_profile("mesh"))
meshes = st.from_type(DeviceMesh)


@law
@given(meshes)
def test_data_ranks_follow_dp_then_fsdp_in_blocks_of_ulysses(mesh: DeviceMesh) -> None:
    for rank in mesh.ranks:
        coords = mesh.coordinate(rank)
        place = 0
        for dim in mesh.data_dims:
            place = place * mesh.size(dim) + coords[dim]
        if "data_positions" not in mesh.to_dict():  # whole dims hold the data
            assert mesh.data_rank(rank) == place // mesh.ulysses_size
    assert {mesh.data_rank(rank) for rank in mesh.ranks} == set(range(mesh.data_world_size))
    if mesh.dim_names and {"dp", "fsdp"} <= set(mesh.dim_names):
        assert mesh.data_dims[-2:] == ("dp", "fsdp")
        assert mesh.data_world_size == mesh.dp_size * mesh.fsdp_size // mesh.ulysses_size


@law
@given(meshes, st.integers(0, 100))
def test_dispatching_and_collecting_gives_back_the_input(mesh: DeviceMesh, length: int) -> None:
    batch = list(range(length))
    results = {rank: [("seen", row) for row in batch[mesh.get_slice(length, rank)]] for rank in mesh.ranks}
    assert [row for rank in mesh.collect_ranks for row in results[rank]] == [("seen", row) for row in batch]
    assert [mesh.data_slice(length, share) for share in range(mesh.data_world_size)] == mesh.data_slices(length)


@law
@given(meshes)
def test_one_rank_is_collected_for_each_data_rank(mesh: DeviceMesh) -> None:
    last = set(mesh.pp_last_ranks)
    assert last == {rank for rank in mesh.ranks if mesh.coordinate(rank).get("pp", 0) == mesh.pp_size - 1}
    assert list(mesh.pp_first_ranks) == sorted(r for r in mesh.ranks if mesh.coordinate(r).get("pp", 0) == 0)
    assert list(mesh.pp_last_ranks) == sorted(last)
    holders = [[rank for rank in last if mesh.data_rank(rank) == share] for share in range(mesh.data_world_size)]
    assert list(mesh.collect_ranks) == [min(ranks) for ranks in holders]


@law
@given(meshes)
def test_peers_see_the_same_samples(mesh: DeviceMesh) -> None:
    for rank in mesh.ranks:
        same = mesh.same_data(rank)
        assert list(same) == sorted(r for r in mesh.ranks if mesh.data_rank(r) == mesh.data_rank(rank))
        ulysses = mesh.ulysses_group(rank)
        assert len(ulysses) == mesh.ulysses_size
        assert rank in ulysses
        assert set(ulysses) <= set(same)
        assert set(ulysses) <= set(mesh.group(mesh.data_dims, rank))


def test_a_table_with_every_kind_of_parallelism() -> None:
    mesh = DeviceMesh.from_sizes(fsdp_size=2, dp_size=2, pp_size=2, cp_size=2, tp_size=2, ulysses_size=2)
    # Dims fsdp, pp, dp, cp, tp: dp 1 starts 4 ranks further on, fsdp 1 starts 16 further on.
    assert [mesh.data_rank(rank) for rank in range(32)] == ([0] * 4 + [1] * 4) * 4
    assert mesh.collect_ranks == [8, 12]
    assert mesh.same_data(0) == [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27]
    assert mesh.ulysses_group(1) == [1, 17]
    assert mesh.get_slice(5, 31) == slice(3, 5)


def test_fsdp_outside_dp_keeps_data_order() -> None:
    mesh = DeviceMesh.from_sizes(fsdp_size=2, dp_size=2)
    assert [mesh.data_rank(rank) for rank in range(4)] == [0, 2, 1, 3]
    assert mesh.collect_ranks == [0, 2, 1, 3]


def test_ulysses_across_the_edge_of_fsdp() -> None:
    mesh = DeviceMesh.from_sizes(fsdp_size=3, dp_size=2, ulysses_size=2)
    assert [mesh.data_rank(rank) for rank in range(6)] == [0, 1, 0, 2, 1, 2]
    assert mesh.collect_ranks == [0, 1, 3]
    assert [list(mesh.same_data(rank)) for rank in (0, 1, 3)] == [[0, 2], [1, 4], [3, 5]]


def test_without_a_rank_the_running_worker_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = DeviceMesh.from_sizes(dp_size=4)
    with pytest.raises(ValueError, match="no current rank"):
        mesh.get_slice(8)
    assert DeviceMesh.from_ranks([7], "dp").data_rank() == 0
    monkeypatch.setenv("RANK", "2")
    assert mesh.get_slice(8) == slice(4, 6)
    with use_rank(3) as rank:
        assert rank == current_rank() == 3
        assert mesh.get_slice(8) == slice(6, 8)
        with use_rank(None):
            assert mesh.data_rank() == 2
        assert mesh.coordinate() == {"dp": 3}
    assert current_rank() is None
    monkeypatch.setenv("RANK", "none")
    with pytest.raises(ValueError, match="RANK='none'"):
        mesh.data_rank()
    with use_rank(4), pytest.raises(ValueError, match="rank=4"):
        mesh.data_rank()


def test_errors_of_data_slice() -> None:
    with pytest.raises(ValueError, match=re.escape("data_rank=4 is outside [0, 3]: data_world_size=4")):
        DeviceMesh.from_sizes(dp_size=4, tp_size=2).data_slice(8, 4)
    with pytest.raises(ValueError, match="total_length=-1"):
        DeviceMesh.from_sizes(dp_size=4).get_slice(-1, 0)
