"""What errors offer: every size that one names is accepted when it is put in."""

from __future__ import annotations

import os
import re
from ast import literal_eval
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_mesh.recipes import (
    DDPConfig,
    FSDP2Config,
    MegatronFSDPConfig,
    create_device_mesh,
    optimus_meshes,
    torchtitan_meshes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

law = settings(settings.get_profile("mesh"), max_examples=int(os.environ.get("TWINKLE_EXAMPLES", "40")))
size = st.integers(1, 9)
SIZES = ("dp", "fsdp", "tp", "pp", "cp", "ulysses", "ep", "etp", "vpp")


def offers(error: ValueError) -> Iterator[dict[str, object]]:
    """Yield the changes of fields that an error says to use."""
    said, _, offer = str(error).partition("; ")
    if not offer.startswith("use "):
        return
    [field] = re.findall(r"^(\w+)=", said)
    words = re.findall(r"(?:(\w+)=)?(True|False|None|\d+|'[^']*')", offer)
    if " and " in offer:
        yield {name: literal_eval(word) for name, word in words}
        return
    for name, word in words:
        field = name or field
        yield {field: literal_eval(word)}


def check(build: Callable[..., object], fields: dict[str, Any]) -> None:
    try:
        build(**fields)
    except ValueError as error:
        for changes in offers(error):
            build(**{**fields, **changes})


@law
@given(
    st.fixed_dictionaries(
        {
            "world_size": st.none() | st.integers(0, 60),
            "sequence_parallel": st.booleans(),
            "device_type": st.sampled_from(["cuda", "cuda:0"]),
        },
        optional={f"{name}_size": st.integers(-1, 9) for name in SIZES},
    ),
    st.none() | st.lists(st.sampled_from(["tp", "cp", "ep", "dp", "pp"]), min_size=1, unique=True).map("-".join),
)
@pytest.mark.slow
def test_sizes(fields: dict[str, Any], order: str | None) -> None:
    check(DeviceMesh.from_sizes, {"order": order, **fields})


@law
@given(
    st.integers(1, 24), st.fixed_dictionaries({}, optional={f"{name}_size": st.integers(0, 9) for name in SIZES[-4:]})
)
@pytest.mark.slow
def test_explicit_ranks(world: int, fields: dict[str, Any]) -> None:
    check(lambda **more: DeviceMesh.from_ranks(list(range(world)), "dp", **more), fields)


@law
@given(
    st.sampled_from([FSDP2Config(), MegatronFSDPConfig(), DDPConfig()]),
    st.fixed_dictionaries(
        {"world_size": st.integers(0, 60)},
        optional={f"{name}_size": st.integers(0, 9) for name in ("dp", "dp_replicate", "tp", "pp", "cp", "ep")},
    ),
)
@pytest.mark.slow
def test_automodel(config: Any, fields: dict[str, Any]) -> None:
    check(lambda **more: create_device_mesh(config, **more), fields)


@law
@given(
    st.fixed_dictionaries(
        {"world_size": st.integers(0, 60), "local_world_size": st.integers(0, 9)},
        optional={"tp_size": st.integers(0, 9), "sharding_world_size": st.none() | st.integers(-1, 9)},
    )
)
def test_optimus(fields: dict[str, Any]) -> None:
    check(optimus_meshes, fields)


@law
@given(
    st.fixed_dictionaries(
        {"world_size": st.integers(0, 60)},
        optional={
            "dp_replicate": st.integers(0, 5),
            "dp_shard": st.integers(-1, 5),
            **{name: st.integers(0, 5) for name in ("cp", "tp", "pp", "ep", "etp")},
        },
    )
)
@pytest.mark.slow
def test_torchtitan(fields: dict[str, Any]) -> None:
    check(torchtitan_meshes, fields)


@law
@given(
    st.fixed_dictionaries(
        {
            "ranks": st.integers(0, 9) | st.lists(st.integers(0, 9), max_size=5, unique=True),
            "device_type": st.sampled_from(["GPU", "CPU", ""]),
            "gpus_per_worker": st.integers(0, 5),
            "visible_devices": st.sampled_from([None, "0,1", "1,2,3,4,5,6,7,8,9"]),
            "nodes": st.none() | st.integers(0, 5),
        }
    )
)
def test_groups(fields: dict[str, Any]) -> None:
    try:
        DeviceGroup("actor", **fields)
    except ValueError as error:
        for changes in offers(error):
            DeviceGroup("actor", **{**fields, **changes})


@law
@given(
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(0, 20),
    st.sampled_from(["nodes", "ranks_per_node"]),
    st.sampled_from(["refuse", "allow"]),
)
def test_nodes(dp: int, tp: int, count: int, field: str, tp_crossing: str) -> None:
    mesh = DeviceMesh.from_sizes(dp_size=dp, tp_size=tp)
    given: dict[str, Any] = {field: count}
    try:
        mesh.with_nodes(**given, tp_crossing=tp_crossing)
    except ValueError as error:
        for changes in offers(error):
            change: dict[str, Any] = changes
            mesh.with_nodes(**change, tp_crossing=tp_crossing)
        for smaller in re.findall(r"make it smaller \(([\d, ]*)\)", str(error)):
            nodes = mesh.with_nodes(**given, tp_crossing="allow").nodes
            for fits in map(int, smaller.split(", ")):
                DeviceMesh.from_sizes(world_size=dp * tp, tp_size=fits).with_nodes(nodes, tp_crossing="refuse")


def test_where_no_size_fits_the_error_changes_two_fields() -> None:
    with pytest.raises(ValueError, match=r"^tp_size=0 must be at least 1.*use 2$"):
        DeviceMesh.from_sizes(tp_size=0, sequence_parallel=True)
    with pytest.raises(ValueError, match=re.escape("ulysses_size=5 does not divide dp_size=4; use 1, 2 or 4")):
        DeviceMesh.from_sizes(dp_size=4, ulysses_size=5)
    said = "tp_size=3 does not divide world_size=8; use tp_size=2 and vpp_size=1"
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        DeviceMesh.from_sizes(world_size=8, tp_size=3, vpp_size=2)


@pytest.mark.parametrize("given", [True, 2.0, "2", None, 2.5])
def test_only_whole_numbers_are_counts(given: Any) -> None:
    mesh = DeviceMesh.from_sizes(dp_size=2, tp_size=2)
    with pytest.raises(ValueError, match="must be a"):
        DeviceGroup("actor", given, "GPU")
    with pytest.raises(ValueError, match="device indices"):
        DeviceGroup("actor", [given], "GPU")
    if given is not None:
        for use in (
            lambda: DeviceGroup("actor", 2, "GPU", gpus_per_worker=given),
            lambda: DeviceGroup("actor", 2, "GPU", nodes=given),
            lambda: mesh.get_slice(given, 0),
            lambda: mesh.get_slice(4, given),
            lambda: mesh.data_slice(4, given),
            lambda: mesh.data_slices(given),
            lambda: mesh.with_nodes(given),
            lambda: mesh.with_nodes([given, 4]),
        ):
            with pytest.raises(ValueError, match=r"must be (a whole|at least)|needs"):
                use()
