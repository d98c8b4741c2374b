from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from twinkle_mesh import DeviceMesh

if TYPE_CHECKING:
    from collections.abc import Callable

law = settings(settings.get_profile("mesh"))
meshes = st.from_type(DeviceMesh).filter(lambda mesh: bool(mesh.dim_names))


def some(mesh: DeviceMesh) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(mesh.dim_names), min_size=1, unique=True)


@law
@given(meshes, st.data())
def test_a_submesh_is_the_group_of_its_dims(mesh: DeviceMesh, data: st.DataObject) -> None:
    dims, rank = data.draw(some(mesh)), data.draw(st.sampled_from(list(mesh.ranks)))
    part = mesh.submesh(dims, rank)
    assert part.dim_names == tuple(dims)
    assert part.shape == tuple(map(mesh.size, dims))
    assert sorted(part.ranks) == sorted(mesh.group(dims, rank))
    home = mesh.coordinate(rank)
    for held in part.ranks:
        assert mesh.coordinate(held) == {**home, **part.coordinate(held)}
    assert mesh[dims] == mesh.submesh(dims, mesh.ranks[0])
    assert mesh[mesh.dim_names] == mesh


@law
@given(meshes, st.data())
def test_at_fixes_coordinates(mesh: DeviceMesh, data: st.DataObject) -> None:
    dims, rank = data.draw(some(mesh)), data.draw(st.sampled_from(list(mesh.ranks)))
    home = mesh.coordinate(rank)
    part = mesh.at(**{dim: home[dim] for dim in dims})
    rest = [dim for dim in mesh.dim_names if dim not in dims]
    assert part.dim_names == tuple(rest)
    assert list(part.ranks) == [r for r in mesh.ranks if all(mesh.coordinate(r)[dim] == home[dim] for dim in dims)]
    assert sorted(part.ranks) == sorted(mesh.group(rest, rank))


@law
@given(meshes, st.data())
def test_flatten_after_unflatten_and_unflatten_after_flatten(mesh: DeviceMesh, data: st.DataObject) -> None:
    dim = data.draw(st.sampled_from(mesh.dim_names))
    size = data.draw(st.sampled_from([n for n in range(1, mesh.size(dim) + 1) if mesh.size(dim) % n == 0]))
    cut = mesh.unflatten(dim, {"outer": -1, "inner": size})
    assert list(cut.ranks) == list(mesh.ranks)
    assert cut.flatten(("outer", "inner"), name=dim).layout.key == mesh.layout.key
    assert cut.data_world_size == mesh.data_world_size
    assert [cut.data_rank(rank) for rank in mesh.ranks] == [mesh.data_rank(rank) for rank in mesh.ranks]

    dims = data.draw(some(mesh))
    flat = mesh.flatten(dims, name="flat")
    assert flat.size("flat") == math.prod(map(mesh.size, dims))
    assert list(flat.submesh("flat", mesh.ranks[0]).ranks) == list(mesh[dims].ranks)
    back = flat.unflatten("flat", {name: mesh.size(name) for name in dims}).transpose(*mesh.dim_names)
    assert back.layout.key == mesh.layout.key


@law
@given(meshes, st.data())
def test_transposing_and_renaming_keep_ranks_and_data(mesh: DeviceMesh, data: st.DataObject) -> None:
    turned = mesh.transpose(*data.draw(st.permutations(mesh.dim_names)))
    for rank in mesh.ranks:
        assert turned.coordinate(rank) == mesh.coordinate(rank)
        assert turned.data_rank(rank) == mesh.data_rank(rank)
    assert turned.transpose(*mesh.dim_names) == mesh
    assert mesh.transpose().dim_names == mesh.dim_names[::-1]
    assert turned.expert.layout.key == mesh.expert.layout.key or not mesh.is_regular

    dim = data.draw(st.sampled_from(mesh.dim_names))
    renamed = mesh.rename({dim: "other"})
    assert renamed.size("other") == mesh.size(dim)
    assert renamed.data_world_size == mesh.data_world_size
    assert list(renamed.ranks) == list(mesh.ranks)
    assert mesh.rename({dim: "other"}) == mesh.rename(**{dim: "other"})
    if dim not in ("pp", "tp"):
        assert renamed.rename(other=dim) == mesh


@law
@given(meshes, st.data())
def test_concat_after_select(mesh: DeviceMesh, data: st.DataObject) -> None:
    dim = data.draw(st.sampled_from(mesh.dim_names))
    parts = [mesh.at(**{dim: place}) for place in range(mesh.size(dim))]
    if len({part.ulysses_size for part in parts}) > 1:  # ulysses groups reach over parts
        with pytest.raises(ValueError, match="ulysses_size"):
            parts[0].concat(*parts[1:], dim=dim)
        return
    joined = parts[0].concat(*parts[1:], dim=dim)
    front = mesh.transpose(dim, *(name for name in mesh.dim_names if name != dim))
    assert joined.layout.key == front.layout.key
    assert joined.dim_names == front.dim_names


def test_parts_that_ulysses_groups_reach_over_are_not_put_together() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=4, fsdp_size=3, ulysses_size=4).transpose("dp", "fsdp")
    first, *others = (mesh.at(dp=place) for place in range(4))
    with pytest.raises(ValueError, match="ulysses_size"):
        first.concat(*others, dim="dp")


def test_irregular_ranks_and_sizes_that_do_not_fit_the_factors_keep_their_order() -> None:
    listed = DeviceMesh.from_ranks([3, 1, 2, 7], "dp").unflatten("dp", {"a": 2, "b": 2})
    assert listed.groups("b") == [[2, 7], [3, 1]]
    apart = DeviceMesh.from_sizes(dp_size=3, tp_size=2, cp_size=2).flatten(("tp", "dp"), "x")
    assert list(apart.unflatten("x", {"a": 3, "b": 2}).ranks) == list(apart.ranks)


def test_concat_along_a_dim_that_is_there() -> None:
    low, high = DeviceMesh.from_sizes(dp_size=2, tp_size=2), DeviceMesh.from_ranks([[4, 5], [6, 7]], ("dp", "tp"))
    assert low.concat(high, dim="dp") == DeviceMesh.from_sizes(dp_size=4, tp_size=2)
    assert low.concat(high, dim="tp").groups("tp") == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert low.concat(high, dim="pp") == DeviceMesh.from_sizes(pp_size=2, dp_size=2, tp_size=2)
    assert high.concat(low, dim="pp").groups("pp") == [[4, 0], [5, 1], [6, 2], [7, 3]]
    assert low.concat(high, dim="fsdp").data_dims == ("dp", "fsdp")
    assert low.concat(high, dim="other").data_world_size == 2
    assert low.concat(dim="dp") == low


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (DeviceMesh.from_sizes(dp_size=4), r"differ in their ranks only, but shape is \(2, 2\) in .* and \(4,\) in "),
        (
            DeviceMesh.from_sizes(dp_size=2, tp_size=2, device_type="cpu"),
            "but device_type is 'cuda' in .* and 'cpu' in ",
        ),
        (DeviceMesh.from_sizes(dp_size=2, tp_size=2, etp_size=1), "but etp_size is 2 in .* and 1 in "),
        (DeviceMesh.from_ranks([[3, 4], [5, 6]], ("dp", "tp")), "rank 3 is in several of the 2 meshes"),
    ],
)
def test_errors_of_concat(other: DeviceMesh, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DeviceMesh.from_sizes(dp_size=2, tp_size=2).concat(other, dim="dp")


def test_meshes_with_other_orders_of_experts_are_not_put_together() -> None:
    inside, outside = [
        DeviceMesh.from_sizes(tp_size=2, dp_size=4, ep_size=2, order=order) for order in ("ep-tp-dp", "tp-ep-dp")
    ]
    with pytest.raises(ValueError, match="expert_order"):
        inside.concat(outside, dim="dp")


def test_attributes_follow_their_dims() -> None:
    mesh = DeviceMesh.from_sizes(
        dp_size=2, fsdp_size=2, pp_size=2, tp_size=2, ulysses_size=2, ep_size=2, vpp_size=2, sequence_parallel=True
    )
    stage = mesh.at(pp=1)
    assert (stage.ulysses_size, stage.ep_size, stage.vpp_size, stage.sequence_parallel) == (2, 2, 1, True)
    assert stage.expert.dim_names == ("pp", "ep_shard", "ep", "etp")
    assert sorted(stage.expert.ranks) == sorted(mesh.expert.at(pp=1).ranks)
    column = mesh["tp"]
    assert (column.ulysses_size, column.ep_size, column.vpp_size, column.sequence_parallel) == (1, 1, 1, True)
    assert column.data_world_size == 1
    assert mesh["dp"].ulysses_size == 1
    assert mesh["dp"].data_world_size == 2
    assert mesh.rename(pp="stage").vpp_size == 1
    assert mesh.rename(tp="model").etp_size == 2
    assert mesh.unflatten("dp", {"dp_replicate": 2, "dp_shard": 1}).data_dims == ("dp_replicate", "dp_shard", "fsdp")
    assert mesh.flatten(("dp", "fsdp")).data_rank(9) == mesh.data_rank(9)


def test_views_name_flattened_dims() -> None:
    mesh = DeviceMesh.from_sizes(fsdp_size=2, cp_size=2, tp_size=2).with_views(fsdp_cp=("fsdp", "cp"), seq="cp")
    assert mesh["fsdp_cp"].ranks == [0, 2, 4, 6]
    assert mesh.submesh("fsdp_cp", 5).ranks == [1, 3, 5, 7]
    assert mesh["fsdp_cp", "tp"].shape == (4, 2)
    assert mesh.size("fsdp_cp") == 4
    assert mesh.group("fsdp_cp", 5) == [1, 3, 5, 7]
    assert not mesh.has_dim("fsdp_cp")
    assert mesh["fsdp", "cp"].views == mesh.views
    assert mesh["fsdp"].views == ()
    assert mesh.rename(cp="context").views == (("fsdp_cp", ("fsdp", "context")), ("seq", ("context",)))
    assert mesh.unflatten("fsdp", {"a": 2, "b": 1}).views[0] == ("fsdp_cp", ("a", "b", "cp"))
    with pytest.raises(ValueError, match="in a view"):
        mesh["fsdp_cp", "cp"]


@pytest.mark.parametrize(
    ("views", "said"),
    [
        ({"tp": ("dp",)}, "the view 'tp' has the name of a dim or of another view"),
        ({"x": ("dp", "pp")}, "the mesh has no dim 'pp'"),
        ({"x": ("dp", "dp")}, "must stand for at least one dim, each named once"),
        ({"x": ()}, "must stand for at least one dim"),
    ],
)
def test_errors_of_views(views: dict[str, tuple[str, ...]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DeviceMesh.from_sizes(dp_size=2, tp_size=2).with_views(**views)


def test_errors_of_the_other_operations() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=4, tp_size=2)
    cases: dict[str, Callable[[], DeviceMesh]] = {
        "the mesh has no dim or view 'pp'; use 'dp' or 'tp'": lambda: mesh["pp"],
        "already holds 'dp'": lambda: mesh["dp", "dp"],
        "the mesh has no dim 'pp'; use 'dp' or 'tp'": lambda: mesh.at(pp=0),
        "dp=4 is outside [0, 3]": lambda: mesh.at(dp=4),
        "name='tp' is the name of a dim that stays": lambda: mesh.flatten("dp", name="tp"),
        "flatten needs at least one dim": lambda: mesh.flatten(()),
        "a=3 = 3 does not make up dp_size=4; use sizes that multiply to 4": lambda: mesh.unflatten("dp", {"a": 3}),
        "a=3 = 3 does not make up": lambda: mesh.unflatten("dp", {"a": 3, "b": -1}),
        "no sizes = 1 does not make up": lambda: mesh.unflatten("dp", {}),
        "a=-1 and b=-1: only one size": lambda: mesh.unflatten("dp", {"a": -1, "b": -1}),
        "a=0 must be at least 1, or -1": lambda: mesh.unflatten("dp", {"a": 0}),
        "leaves out ['tp']; name every dim once": lambda: mesh.transpose("dp"),
        "the mesh has no dim 'cp'": lambda: mesh.rename(cp="x"),
        "already holds 'tp'": lambda: mesh.rename(dp="tp"),
    }
    for said, operation in cases.items():
        with pytest.raises(ValueError, match=re.escape(said)):
            operation()


@law
@given(st.from_type(DeviceMesh), st.data())
def test_a_submesh_knows_its_siblings(mesh: DeviceMesh, data: st.DataObject) -> None:
    mesh = DeviceMesh.from_dict(mesh.to_dict())  # a whole one
    dims = data.draw(st.lists(st.sampled_from(mesh.dim_names), unique=True)) if mesh.dim_names else []
    inner = data.draw(st.lists(st.sampled_from(dims), unique=True)) if dims else []
    rank = data.draw(st.sampled_from(list(mesh.ranks)))
    own = mesh.submesh(tuple(dims), rank)
    expected = sorted({tuple(mesh.submesh(tuple(dims), other).ranks) for other in mesh.ranks})
    assert [tuple(part.ranks) for part in own.siblings] == expected
    assert own in own.siblings
    deeper = own.submesh(tuple(inner), rank)
    expected = sorted({tuple(mesh.submesh(tuple(inner), other).ranks) for other in mesh.ranks})
    assert [tuple(part.ranks) for part in deeper.siblings] == expected
    assert [part.dim_names for part in deeper.siblings] == [deeper.dim_names] * len(expected)


@law
@given(st.from_type(DeviceMesh), st.data())
def test_renaming_there_and_back_loses_nothing(mesh: DeviceMesh, data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(mesh.dim_names), unique=True)) if mesh.dim_names else []
    there = {name: f"other{number}" for number, name in enumerate(names)}
    back = list({new: old for old, new in there.items()}.items())
    renamed = mesh.rename(there)
    for new, old in data.draw(st.permutations(back)):
        renamed = renamed.rename({new: old})
    assert renamed == mesh


def test_an_attribute_belongs_to_its_dim_not_to_its_name() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=2, tp_size=2, pp_size=2, sequence_parallel=True, vpp_size=2)
    assert mesh.rename(tp="x").with_nodes(2).transpose().rename(x="tp").sequence_parallel
    assert mesh.rename(pp="x", dp="y").rename(x="pp").vpp_size == 2
    with pytest.warns(UserWarning, match="along tp"):
        assert not mesh.rename(tp="x").rename(dp="tp").sequence_parallel
