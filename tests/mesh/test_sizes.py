from __future__ import annotations

import re
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from twinkle_mesh import DeviceMesh, balanced_slice
from twinkle_mesh.sizes import infer_sizes

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
    assert build(world_size=8, tp_size=2).size("dp") == 4
    assert build(world_size=8, fsdp_size=-1, tp_size=2).shape == (4, 1, 2)
    assert build(world_size=8, fsdp_size=-1).size("dp") == 1


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"world_size": 8, "tp_size": 3}, "tp_size=3 does not divide world_size=8; use 1, 2, 4 or 8"),
        (
            {"world_size": 8, "dp_size": 2, "tp_size": 2},
            "dp_size=2 * tp_size=2 = 4 is not world_size=8; use world_size=4, or one size of -1",
        ),
        ({"world_size": 8, "dp_size": 4}, "dp_size=4 is not world_size=8; use world_size=4, or one size of -1"),
        (
            {"world_size": 8, "pp_size": 2, "tp_size": 3},
            "pp_size=2 * tp_size=3 = 6 does not divide world_size=8; use sizes that multiply to 1, 2, 4 or 8",
        ),
        (
            {"world_size": 7, "pp_size": 2, "tp_size": 3},
            "pp_size=2 * tp_size=3 = 6 does not divide world_size=7; use sizes that multiply to 1 or 7",
        ),
        (
            {"world_size": 24, "tp_size": 3, "cp_size": 16},
            "cp_size=16 * tp_size=3 = 48 does not divide world_size=24; use sizes that multiply to 6, 8, 12 or 24",
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
@given(st.integers(1, 60), st.sampled_from(NAMES), st.integers(1, 9))
def test_what_an_error_says_would_do_does(world: int, name: str, size: int) -> None:
    try:
        build(world_size=world, **{f"{name}_size": size})
    except ValueError as error:
        offered = re.findall(r"\d+", str(error).partition("; use ")[2].partition(", or")[0])
        for value in map(int, offered):
            build(**({f"{name}_size": size, "world_size": value} if name == "dp" else {f"{name}_size": value}))
        assert offered


def test_sizes_of_any_magnitude_are_answered_at_once() -> None:
    with pytest.raises(ValueError, match="tp_size=3 does not divide world_size=1000000000000000003"):
        build(world_size=10**18 + 3, tp_size=3)


@law
@given(st.integers(0, 500), st.integers(1, 40))
def test_the_first_remainder_parts_get_one_more(total: int, parts: int) -> None:
    rows = [list(range(total))[balanced_slice(total, parts, part)] for part in range(parts)]
    assert [row for part in rows for row in part] == list(range(total))
    assert [len(part) for part in rows] == [total // parts + (part < total % parts) for part in range(parts)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((-1, 2, 0), "total_length=-1 must be at least 0"),
        ((4, 0, 0), "parts=0 must be at least 1"),
        ((4, 2, 2), "part=2 is outside [0, 1]"),
        ((4, 2, -1), "part=-1 must be at least 0"),
    ],
)
def test_errors_of_slices(arguments: tuple[int, int, int], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        balanced_slice(*arguments)


@pytest.mark.parametrize(
    ("ranks", "names", "said"),
    [
        ([[0, 1], [2]], ("dp", "tp"), "ranks is empty or ragged at depth 1"),
        ([[0, 1], 2], ("dp", "tp"), "ranks is empty or ragged at depth 1"),
        ([0, 1, 1], ("dp",), "ranks holds 1 2 times"),
        ([0, -1], ("dp",), "ranks=-1 must be at least 0"),
        ([], ("dp",), "ranks is empty or ragged at depth 0"),
        (3, ("dp",), "ranks=3 must be a list"),
        ([0, 1.5], ("dp",), "ranks=1.5 must be a whole number"),
        ([0, "a"], ("dp",), "ranks='a' must be a whole number"),
        (
            [0, 1],
            ("dp", "tp"),
            "dim_names=('dp', 'tp') must name the 1 dims of the shape (2,)",
        ),
        ([[0], [1]], ("dp", "dp"), "dim name 'dp' must be a word such as 'dp', and each dim or view has its own"),
        ([0, 1], ("",), "the names [''] do not say"),
    ],
)
def test_errors_of_explicit_ranks(ranks: object, names: tuple[str, ...], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        DeviceMesh.from_ranks(ranks, names)
