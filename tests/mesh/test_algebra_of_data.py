"""Laws of data parallelism under the operations that give a new mesh."""

from __future__ import annotations

import itertools
import json
import pickle
import warnings
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given, settings

from twinkle_mesh import DeviceMesh

if TYPE_CHECKING:
    from hypothesis.strategies import DataObject

law = settings(settings.get_profile("mesh"))
meshes = st.from_type(DeviceMesh).filter(lambda mesh: bool(mesh.dim_names))
PLAIN = DeviceMesh.from_sizes(dp_size=2, tp_size=2)


def seen(mesh: DeviceMesh) -> dict[int, int]:
    return {rank: mesh.data_rank(rank) for rank in mesh.ranks}


def some(mesh: DeviceMesh) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(mesh.dim_names), min_size=1, unique=True)


def renumbered(shares: dict[int, int]) -> dict[int, int]:
    order = {share: number for number, share in enumerate(sorted(set(shares.values())))}
    return {rank: order[share] for rank, share in shares.items()}


def cuts_ulysses_groups(mesh: DeviceMesh, rank: int) -> bool:
    """Whether a part of a mesh has unequal numbers of ranks at the data positions of a rank's ulysses group."""
    positions = [mesh._data_position(mesh._coords(other)) for other in mesh.same_data(rank)]
    return len(set(map(positions.count, positions))) > 1


def check_queries(mesh: DeviceMesh) -> None:
    """What a mesh says of its data in different places agrees."""
    shares = seen(mesh)
    assert set(shares.values()) == set(range(mesh.data_world_size))
    last = set(mesh.pp_last_ranks)
    assert list(mesh.collect_ranks) == [
        min(rank for rank in last if shares[rank] == share) for share in range(mesh.data_world_size)
    ]
    for rank in mesh.ranks:
        assert list(mesh.same_data(rank)) == sorted(other for other in mesh.ranks if shares[other] == shares[rank])
        if mesh.data_layout is not None and cuts_ulysses_groups(mesh, rank):
            with pytest.raises(ValueError, match="whole ulysses groups"):
                mesh.ulysses_group(rank)
            continue
        peers = mesh.ulysses_group(rank)
        assert len(peers) == mesh.ulysses_size and rank in peers and set(peers) <= set(mesh.same_data(rank))
        assert all(mesh.ulysses_group(peer) == peers for peer in peers)
    assert mesh.expert.data_world_size == 1


def step(mesh: DeviceMesh, data: DataObject, number: int) -> DeviceMesh:
    """Name the same ranks anew."""
    how = data.draw(st.sampled_from(["flatten", "unflatten", "rename", "transpose"]))
    if how == "flatten":
        return mesh.flatten(data.draw(some(mesh)), data.draw(st.sampled_from([None, f"x{number}"])))
    dim = data.draw(st.sampled_from(mesh.dim_names))
    if how == "unflatten":
        size = data.draw(st.sampled_from([n for n in range(1, mesh.size(dim) + 1) if mesh.size(dim) % n == 0]))
        return mesh.unflatten(dim, {f"a{number}": -1, f"b{number}": size})
    if how == "rename":
        return mesh.rename({dim: f"r{number}"})
    return mesh.transpose(*data.draw(st.permutations(mesh.dim_names)))


@law
@given(meshes, st.integers(1, 4), st.data())
def test_naming_the_same_ranks_anew_keeps_their_samples(mesh: DeviceMesh, steps: int, data: DataObject) -> None:
    other = mesh
    for number in range(steps):
        other = step(other, data, number)
    assert seen(other) == seen(mesh)
    assert other.ulysses_size == mesh.ulysses_size
    check_queries(other)
    for copy in (DeviceMesh.from_dict(json.loads(json.dumps(other.to_dict()))), pickle.loads(pickle.dumps(other))):
        assert copy == other and seen(copy) == seen(other)


@law
@given(meshes, st.data())
def test_a_part_keeps_which_ranks_share_samples(mesh: DeviceMesh, data: DataObject) -> None:
    mesh = step(mesh, data, 0)
    dims, rank = data.draw(some(mesh)), data.draw(st.sampled_from(list(mesh.ranks)))
    home = mesh.coordinate(rank)
    for part in (mesh.submesh(dims, rank), mesh.at(**{dim: home[dim] for dim in dims})):
        assert seen(part) == renumbered({held: mesh.data_rank(held) for held in part.ranks})
        check_queries(part)


@law
@given(meshes, st.data())
def test_flatten_then_unflatten_is_the_mesh(mesh: DeviceMesh, data: DataObject) -> None:
    dims = data.draw(some(mesh))
    back = mesh.flatten(dims, "flat").unflatten("flat", {dim: mesh.size(dim) for dim in dims})
    assert back.transpose(*mesh.dim_names).layout.key == mesh.layout.key
    assert seen(back) == seen(mesh)
    plain = mesh.vpp_size == 1 and not mesh.sequence_parallel and mesh.ep_size == 1 and mesh.etp_size == mesh.tp_size
    plain = plain and "expert_order" not in mesh.to_dict()  # etp goes with the name tp, and the order of etp with it
    if plain and mesh.is_regular and all(mesh.size(dim) > 1 for dim in dims):
        assert back.transpose(*mesh.dim_names) == mesh


@law
@given(meshes, st.data())
def test_concat_puts_the_samples_of_one_mesh_after_those_of_another(mesh: DeviceMesh, data: DataObject) -> None:
    shift = max(mesh.ranks) + 1
    layout = {rank: rank + shift for rank in mesh.ranks}
    dim = data.draw(st.sampled_from([*mesh.dim_names, "new"]))
    state = mesh.to_dict()
    if "ranks" in state:
        state["ranks"] = [rank + shift for rank in mesh.ranks]
    else:
        state["offset"] = mesh.ranks[0] + shift
    other = DeviceMesh.from_dict(state)
    joined = mesh.concat(other, dim=dim)
    check_queries(joined)
    assert joined.data_world_size in (mesh.data_world_size, 2 * mesh.data_world_size)
    for part in (mesh, other):
        assert renumbered({rank: joined.data_rank(rank) for rank in part.ranks}) == seen(part)
    apart = joined.data_world_size == 2 * mesh.data_world_size
    assert all((joined.data_rank(rank) != joined.data_rank(layout[rank])) == apart for rank in mesh.ranks)
    assert apart or dim not in mesh.data_dims or mesh.ulysses_size > 1 or "data_positions" in state


@law
@given(meshes, meshes, st.integers(1, 3), st.data())
def test_reprs_are_equal_for_equal_meshes_only(
    one: DeviceMesh, unlike: DeviceMesh, steps: int, data: DataObject
) -> None:
    other = one
    for number in range(steps):
        other = step(other, data, number)
    names = [f"d{number}" for number in range(len(other.dim_names))]
    other = other.rename(dict(zip(other.dim_names, names, strict=True)))
    assume(len(names) == len(one.dim_names))
    alike = one.rename(dict(zip(one.dim_names, names, strict=True)))
    for left, right in itertools.combinations([one, unlike, other, alike], 2):
        assert (left == right) == (repr(left) == repr(right))


def test_reprs_show_data_and_long_lists() -> None:
    flat = PLAIN.flatten()
    assert flat.data_world_size == 2
    assert repr(flat) == "DeviceMesh(dp_tp=4, data_positions=(2:1+2:0), device_type='cuda')"
    back = flat.unflatten("dp_tp", {"dp": 2, "tp": 2})
    assert back == PLAIN
    assert [back.get_slice(8, rank) for rank in range(4)] == [slice(0, 4), slice(0, 4), slice(4, 8), slice(4, 8)]

    ranks = list(range(20))
    long, longer = [DeviceMesh.from_ranks([*ranks[:10], last, *ranks[10:]], "dp") for last in (30, 31)]
    assert repr(long) != repr(longer)
    sizes = [1, 2] * 10
    nodes, others = [DeviceMesh.from_sizes(dp_size=8).with_nodes([*sizes, last, 9]) for last in (4, 5)]
    assert repr(nodes) != repr(others)
    apart = DeviceMesh.from_sizes(pp_size=2, dp_size=3, tp_size=4).flatten(("pp", "tp"), "x")
    aside = DeviceMesh.from_sizes(pp_size=4, dp_size=3, tp_size=2).flatten(("pp", "tp"), "x")
    assert repr(apart) != repr(aside)


def test_concat_along_a_dim_that_is_data_in_part() -> None:
    low = PLAIN
    high = DeviceMesh.from_ranks([[4, 5], [6, 7]], ("dp", "tp"))
    data_outside, data_inside = [
        low.flatten(dims, "x").concat(high.flatten(dims, "x"), dim="x") for dims in (("dp", "tp"), ("tp", "dp"))
    ]
    assert list(seen(data_outside).values()) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert seen(data_inside) == {0: 0, 2: 1, 1: 0, 3: 1, 4: 0, 6: 1, 5: 0, 7: 1}


@pytest.mark.parametrize("cut", [{"a": 3, "b": 2}, {"a": 2, "b": 3}])
def test_sizes_that_do_not_fit_the_data_keep_it_as_a_table(cut: dict[str, int]) -> None:
    mesh = DeviceMesh.from_sizes(dp_size=3, tp_size=2, cp_size=2, ulysses_size=3).flatten(("tp", "dp"), "x")
    apart = mesh.unflatten("x", cut)
    assert seen(apart) == seen(mesh) == dict.fromkeys(mesh.ranks, 0)
    assert apart.flatten(("a", "b"), "x") == mesh
    check_queries(apart)
    assert seen(apart.rename(cp="other")) == seen(mesh)


def test_names_of_parallel_dims_decide_and_a_loss_warns() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=4, tp_size=2)
    with pytest.warns(UserWarning, match="data_world_size=4 becomes 1") as said:
        assert mesh["dp"].rename(dp="tp") == DeviceMesh.from_ranks([0, 2, 4, 6], "tp")
    assert said[0].filename == __file__
    with pytest.warns(UserWarning, match="along tp") as said:
        _ = DeviceMesh.from_sizes(dp_size=4, fsdp_size=2).with_views(tp=("dp", "fsdp"))["tp"]
    assert said[0].filename == __file__
    with pytest.warns(UserWarning, match="along cp"):
        assert mesh.unflatten("dp", {"dp": 2, "cp": 2}) == DeviceMesh.from_sizes(dp_size=2, cp_size=2, tp_size=2)
    with pytest.warns(UserWarning, match="data_world_size=4 becomes 1"):
        assert mesh.flatten(name="tp").data_world_size == 1
    with pytest.warns(UserWarning, match="data_world_size=4 becomes 2"):
        cut = mesh.flatten(name="x").unflatten("x", {"dp": 2, "tp": 4})
    assert cut == DeviceMesh.from_sizes(dp_size=2, tp_size=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        unknown = DeviceMesh.from_ranks([[0, 1], [2, 3]], ("a", "b"), data_dims=())
        assert unknown.rename(a="dp", b="tp") == DeviceMesh.from_sizes(dp_size=2, tp_size=2)
        assert mesh.rename(dp="replica").rename(replica="dp") == mesh
        assert mesh.rename(dp="fsdp").data_dims == ("fsdp",)
        peers = DeviceMesh.from_sizes(dp_size=4, ulysses_size=2).unflatten("dp", {"dp": 2, "cp": 2})
        assert peers == DeviceMesh.from_sizes(dp_size=2, cp_size=2)


def test_a_view_over_data_and_other_dims_keeps_the_samples() -> None:
    mesh = DeviceMesh.from_sizes(fsdp_size=2, cp_size=2, tp_size=2).with_views(fsdp_cp=("fsdp", "cp"))
    assert list(seen(mesh["fsdp_cp"]).values()) == [0, 0, 1, 1]
    titan = DeviceMesh.from_ranks([[0, 1], [2, 3]], ("dp_shard", "cp")).with_views(fsdp=("dp_shard", "cp"))
    assert seen(titan["fsdp"]) == seen(titan) == {0: 0, 1: 0, 2: 1, 3: 1}
    assert titan.flatten(name="fsdp") == titan["fsdp"]


def test_ulysses_peers_stay_together_in_a_part() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=2, fsdp_size=4, ulysses_size=2)
    assert (mesh["fsdp"].ulysses_size, mesh["fsdp"].data_world_size) == (2, 2)
    assert (mesh["dp"].ulysses_size, mesh["dp"].data_world_size) == (1, 2)
    across = DeviceMesh.from_sizes(fsdp_size=3, dp_size=2, ulysses_size=2)
    assert [list(seen(across.at(dp=dp)).values()) for dp in (0, 1)] == [[0, 0, 1], [0, 1, 1]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"data_positions": [[[2, 1]], [[2, 1]]]}, "data_positions .* do not fit its dims"),
        ({"data_positions": [[[2, 2]], []]}, "data_positions .* do not fit its dims"),
        ({"data_positions": [[[2, 1]], [[2, 0]]]}, "data_positions .* do not fit its dims"),
        ({"data_positions": [0, 0, 2, 3]}, "data_positions .* do not fit its dims"),
        ({"data_positions": [0, 1]}, "data_positions .* do not fit its dims"),
        ({"data_positions": [0, 0.5, 1, 1]}, "data_positions=0.5 must be a whole number"),
        ({"data_positions": []}, "not the state of a DeviceMesh"),
        ({"dims": [["a", 2], ["tp", 2]], "data_dims": ["tp"]}, "holds 'tp', whose ranks see the same samples"),
        ({"data_dims": ["a", "a"]}, "names a dim twice"),
        ({"strides": [[[2.0, 2]], [[2, 1]]]}, "strides=2.0 must be a whole number"),
    ],
)
def test_data_of_a_state_is_checked(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DeviceMesh.from_dict({**PLAIN.rename(dp="a", tp="b").to_dict(), **change})


@pytest.mark.parametrize(
    ("names", "data"),
    [
        (("ddp", "fsdp"), 8),
        (("dp_replicate", "dp_shard"), 8),
        (("replicate", "shard"), 8),
        (("data", "tp"), 2),
        (("dp", "sp"), 2),
        (("dp", "infer_tp"), 2),
    ],
)
def test_names_of_the_field_are_known(names: tuple[str, str], data: int) -> None:
    assert DeviceMesh.from_ranks([[0, 1, 2, 3], [4, 5, 6, 7]], names).data_world_size == data


def test_other_names_are_told_of_where_a_mesh_begins() -> None:
    ranks = [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.warns(UserWarning, match="'inner'") as said:
        mesh = DeviceMesh.from_ranks(ranks, ("dp", "inner"))
    assert said[0].filename == __file__
    assert mesh.data_world_size == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert DeviceMesh.from_ranks(ranks, ("outer", "inner"), data_dims=("outer", "inner")).data_world_size == 8
        assert DeviceMesh.from_ranks(ranks, ("outer", "inner"), data_dims="inner").data_world_size == 4
        assert DeviceMesh.from_ranks([ranks[0]], ("outer", "fsdp")).data_world_size == 4
        assert mesh.rename(inner="other").flatten().data_world_size == 2
        assert DeviceMesh.from_dict(mesh.to_dict()) == mesh
    with pytest.raises(ValueError, match="data_dims"):
        DeviceMesh.from_ranks(ranks, ("dp", "inner"), data_dims="tp")
    with pytest.raises(ValueError, match="'tp'"):
        DeviceMesh.from_ranks(ranks, ("dp", "tp"), data_dims=("dp", "tp"))


def test_a_part_that_cuts_through_ulysses_groups_says_so() -> None:
    """Six ranks have the data positions 0, 0, 0, 1, 1, 1; every second of them has 0, 0, 1."""
    mesh = DeviceMesh.from_sizes(dp_size=2, tp_size=3, ulysses_size=2).flatten(["dp", "tp"], "all")
    part = mesh.unflatten("all", {"a": 3, "b": 2}).submesh(["a"], 0)
    with pytest.raises(ValueError, match="whole ulysses groups"):
        part.ulysses_group(0)
