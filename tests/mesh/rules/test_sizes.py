from __future__ import annotations

import re
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from twinkle_mesh import DeviceMesh
from twinkle_mesh.rules.sizes import infer_sizes

law = settings(settings.get_profile("mesh"))
NAMES = ("dp", "fsdp", "tp", "pp", "cp")


def build(**sizes: Any) -> DeviceMesh:
    return DeviceMesh.from_sizes(**sizes)


@law
@given(st.fixed_dictionaries({name: st.integers(1, 5) for name in NAMES}), st.sampled_from(NAMES))
def test_any_one_size_is_inferred_from_the_world(sizes: dict[str, int], left_out: str) -> None:
    world = 1
    for size in sizes.values():
        world *= size
    if world > 1:
        assert infer_sizes({**sizes, left_out: -1}, world) == sizes
    assert infer_sizes({**sizes, "dp": None}, world)["dp"] == (sizes["dp"] if world > 1 else 1)
    assert infer_sizes(sizes, world) == infer_sizes(sizes) == infer_sizes(sizes, 1) == sizes


def test_the_world_is_the_product_unless_it_is_given() -> None:
    assert build().shape == (1,)
    assert build(tp_size=2).shape == (1, 2)
    assert build(world_size=1, tp_size=2, dp_size=3).world_size == 6
    assert build(world_size=8).shape == (8,)
    assert build(world_size=8, tp_size=2).dp_size == 4
    assert build(world_size=8, fsdp_size=-1, tp_size=2).shape == (4, 1, 2)
    assert build(world_size=8, fsdp_size=-1).dp_size == 1


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"world_size": 8, "tp_size": 3}, "tp_size=3 does not divide world_size=8; use 1, 2, 4 or 8"),
        (
            {"world_size": 8, "dp_size": 2, "tp_size": 2},
            "dp_size=2 * tp_size=2 = 4 is not world_size=8; use dp_size=4, tp_size=4 or world_size=4",
        ),
        ({"world_size": 8, "dp_size": 4}, "dp_size=4 is not world_size=8; use dp_size=8 or world_size=4"),
        (
            {"world_size": 8, "pp_size": 2, "tp_size": 3},
            "pp_size=2 * tp_size=3 = 6 does not divide world_size=8; use tp_size=1, 2 or 4",
        ),
        (
            {"world_size": 7, "pp_size": 2, "tp_size": 3},
            "pp_size=2 * tp_size=3 = 6 does not divide world_size=7; use world_size=6 or 12",
        ),
        (
            {"world_size": 24, "tp_size": 3, "cp_size": 16},
            "cp_size=16 * tp_size=3 = 48 does not divide world_size=24; use cp_size=1, 2, 4 or 8",
        ),
        ({"world_size": 1000, "tp_size": 7}, "tp_size=7 does not divide world_size=1000; use 4, 5, 8 or 10"),
        ({"tp_size": 0}, "tp_size=0 must be at least 1, or -1 to infer it; use 1"),
        ({"pp_size": -2}, "pp_size=-2 must be at least 1"),
        ({"world_size": 0}, "world_size=0 must be at least 1; use 1"),
        ({"ulysses_size": -1}, "ulysses_size=-1 must be at least 1; use 1"),
        ({"ep_size": 0}, "ep_size=0 must be at least 1; use 1"),
        ({"world_size": 8, "dp_size": -1, "tp_size": -1}, "dp_size=-1 and tp_size=-1: only one size can be inferred"),
        ({"tp_size": 2, "dp_size": -1}, "dp_size=-1 needs a world_size to be inferred from; use world_size=2"),
        ({"tp_size": 2.0}, "tp_size=2.0 must be a whole number"),
        ({"tp_size": True}, "tp_size=True must be a whole number"),
        ({"world_size": "8"}, "world_size='8' must be a whole number"),
        ({"dp_size": 4, "ulysses_size": 3}, "ulysses_size=3 does not divide dp_size=4; use 1, 2 or 4"),
        (
            {"dp_size": 2, "fsdp_size": 2, "ulysses_size": 8},
            "ulysses_size=8 does not divide dp_size * fsdp_size=4; use 1, 2 or 4",
        ),
        (
            {"dp_size": 2, "tp_size": 2, "pp_size": 2, "ep_size": 4},
            "ep_size=4 does not divide the dense world's 2 (world_size=8 / pp_size=2 / etp_size=2); use 1 or 2",
        ),
        (
            {"dp_size": 4, "etp_size": 3},
            "etp_size=3 does not divide the dense world of 4 ranks (world_size=4 / pp_size=1); use 1, 2 or 4",
        ),
        ({"vpp_size": 2}, "vpp_size=2 needs pp_size > 1, but pp_size=1; use vpp_size=1"),
        ({"sequence_parallel": True}, "sequence_parallel=True needs tp_size > 1, but tp_size=1"),
        (
            {"device_type": "cuda:0"},
            "device_type='cuda:0' must be torch's name of a device; use 'cuda', 'cpu' or 'npu'",
        ),
        ({"device_type": ""}, "device_type='' must be"),
    ],
)
def test_errors_name_the_field_the_rule_the_values_and_what_would_do(sizes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        build(**sizes)


@law
@given(st.integers(1, 60), st.fixed_dictionaries({}, optional={name: st.integers(1, 9) for name in NAMES}))
def test_what_an_error_says_would_do_does(world: int, sizes: dict[str, int]) -> None:
    given_sizes = {f"{name}_size": size for name, size in sizes.items()}
    try:
        build(world_size=world, **given_sizes)
    except ValueError as error:
        remedies = re.findall(
            r"(\w+_size)=([\d, or]+?)(?: would|;|, \w+_size| or \w+_size)", str(error).partition("; ")[2]
        )
        for field, values in remedies:
            for value in re.findall(r"\d+", values):
                build(**{"world_size": world, **given_sizes, field: int(value)})


@pytest.mark.parametrize(
    ("ranks", "names", "said"),
    [
        ([[0, 1], [2]], ("dp", "tp"), "ranks is ragged at depth 1"),
        ([[0, 1], 2], ("dp", "tp"), "ranks is ragged at depth 1"),
        ([0, 1, 1], ("dp",), "ranks holds 1 2 times"),
        ([0, -1], ("dp",), "ranks holds -1; ranks are at least 0"),
        ([], ("dp",), "ranks is empty"),
        (3, ("dp",), "ranks=3 must be a list"),
        ([0, 1.5], ("dp",), "ranks=1.5 must be a whole number"),
        ([0, "a"], ("dp",), "ranks='a' must be a whole number"),
        (
            [0, 1],
            ("dp", "tp"),
            "dim_names=('dp', 'tp') names 2 dims, but the ranks have the shape (2,); use 1 names",
        ),
        ([[0], [1]], ("dp", "dp"), "dim_names=('dp',) already holds 'dp'"),
        ([0, 1], ("",), "dim name '' must be a word"),
    ],
)
def test_errors_of_explicit_ranks(ranks: object, names: tuple[str, ...], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        DeviceMesh.from_ranks(ranks, names)
