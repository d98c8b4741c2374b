from __future__ import annotations

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
        for dim in mesh.data_dims or ():
            place = place * mesh.size(dim) + coords[dim]
        assert mesh.data_rank(rank) == place // mesh.ulysses_size
    assert {mesh.data_rank(rank) for rank in mesh.ranks} == set(range(mesh.data_world_size))
    if mesh.dim_names and {"dp", "fsdp"} <= set(mesh.dim_names):
        assert mesh.data_world_size == mesh.size("dp") * mesh.size("fsdp") // mesh.ulysses_size


@law
@given(meshes, st.integers(0, 100))
def test_dispatching_and_collecting_gives_back_the_input(mesh: DeviceMesh, length: int) -> None:
    batch = list(range(length))
    results = {rank: [("seen", row) for row in batch[mesh.get_slice(length, rank)]] for rank in mesh.ranks}
    assert [row for rank in mesh.collect_ranks for row in results[rank]] == [("seen", row) for row in batch]


@law
@given(meshes)
def test_one_rank_is_collected_for_each_data_rank(mesh: DeviceMesh) -> None:
    last = set(mesh.pp_last_ranks)
    assert last == {rank for rank in mesh.ranks if mesh.coordinate(rank).get("pp", 0) == mesh.size("pp") - 1}
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


def test_a_table_with_every_kind_of_parallelism() -> None:
    mesh = DeviceMesh.from_sizes(fsdp_size=2, dp_size=2, pp_size=2, cp_size=2, tp_size=2, ulysses_size=2)
    # Dims fsdp, pp, dp, cp, tp: dp 1 starts 4 ranks further on, fsdp 1 starts 16 further on.
    assert [mesh.data_rank(rank) for rank in range(32)] == ([0] * 4 + [1] * 4) * 4
    assert mesh.collect_ranks == [8, 12]
    assert mesh.same_data(0) == [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27]
    assert mesh.get_slice(5, 31) == slice(3, 5)


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


def test_a_length_below_zero_is_an_error() -> None:
    with pytest.raises(ValueError, match="total_length=-1"):
        DeviceMesh.from_sizes(dp_size=4).get_slice(-1, 0)


def same_rows(mesh: DeviceMesh, ranks: list[int]) -> list[list[int]]:
    """The ranks that share their rows, among some ranks of a mesh."""
    shares: dict[int, list[int]] = {}
    for rank in ranks:
        shares.setdefault(mesh.data_rank(rank), []).append(rank)
    return list(shares.values())


@law
@given(meshes, st.data())
def test_in_a_part_each_rank_shares_its_rows_with_the_same_ranks_or_the_part_refuses(
    mesh: DeviceMesh, data: st.DataObject
) -> None:
    dims = data.draw(st.lists(st.sampled_from(mesh.dim_names), unique=True) if mesh.dim_names else st.just([]))
    part = mesh.submesh(dims, data.draw(st.sampled_from(mesh.ranks)))
    if part.data_dims is not None:
        assert same_rows(part, part.ranks) == same_rows(mesh, part.ranks)
        numbers = [mesh.data_rank(rank) for rank in part.collect_ranks]
        assert numbers == sorted(numbers)
        return
    assert mesh.ulysses_size > 1
    for ask in (part.data_rank, part.same_data):
        with pytest.raises(ValueError, match="cuts through ulysses groups"):
            ask(part.ranks[0])
    with pytest.raises(ValueError, match="use those of the whole mesh"):
        part.get_slice(8, part.ranks[0])


def test_a_part_that_cuts_through_ulysses_groups_has_no_data_ranks() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=2, fsdp_size=4, tp_size=2, ulysses_size=2)
    assert [mesh["fsdp"].data_rank(rank) for rank in mesh["fsdp"].ranks] == [0, 0, 1, 1]
    assert mesh["tp"].data_world_size == 1
    cut = mesh.submesh(("dp", "tp"), 0)
    assert cut.groups("dp") == [[0, 2], [1, 3]]
    for read in ("data_world_size", "collect_ranks"):
        with pytest.raises(ValueError, match="cuts through ulysses groups"):
            getattr(cut, read)
    again = DeviceMesh.from_dict(cut.to_dict())
    assert again == cut and again.data_dims is None
    with pytest.raises(ValueError, match="cuts through"):
        cut["tp"].data_rank(0)


def test_a_name_that_says_nothing_about_rows_needs_data_dims() -> None:
    ranks = [[0, 1], [2, 3]]
    for names in (("replica", "tp"), ("dp", "model")):
        with pytest.raises(ValueError, match="data_dims="):
            DeviceMesh.from_ranks(ranks, names)
    split = DeviceMesh.from_ranks(ranks, ("replica", "tp"), data_dims="replica")
    assert [split.data_rank(rank) for rank in range(4)] == [0, 0, 1, 1]
    turned = DeviceMesh.from_ranks(ranks, ("a", "b"), data_dims=("b", "a"))
    assert [turned.data_rank(rank) for rank in range(4)] == [0, 2, 1, 3]
    assert DeviceMesh.from_ranks(ranks, ("a", "b"), data_dims=()).data_world_size == 1
    assert DeviceMesh.from_ranks([[0], [1]], ("dp", "model")).data_world_size == 2  # one rank along model
    for wrong in (("tp",), ("replica", "replica"), ("dp",)):
        with pytest.raises(ValueError, match="dim"):
            DeviceMesh.from_ranks(ranks, ("replica", "tp"), data_dims=wrong)
