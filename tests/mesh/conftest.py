"""Meshes for hypothesis: `st.from_type(DeviceMesh)` draws regular and irregular ones and parts of up to 48 ranks.

The profile "mesh" holds the settings of the property tests. It is not loaded, so other packages keep their settings.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings

from twinkle_mesh import DeviceMesh

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn

settings.register_profile("mesh", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(autouse=True)
def outside_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)


def divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


@st.composite
def from_sizes(draw: DrawFn) -> DeviceMesh:
    room = 48
    sizes: dict[str, int] = {}
    for name in draw(st.permutations(["dp", "fsdp", "tp", "pp", "cp"])):
        size = draw(st.none() | st.integers(1, min(4, room)))
        if size is not None:
            sizes[name] = size
            room //= size
    tp, pp = sizes.get("tp", 1), sizes.get("pp", 1)
    dense = math.prod(sizes.values()) // pp
    etp = draw(st.sampled_from([None, *divisors(dense)]))
    order = draw(st.none() | st.permutations(["tp", "cp", "ep", "dp", "pp", "fsdp"]).map("-".join))
    return DeviceMesh.from_sizes(
        **{f"{name}_size": size for name, size in sizes.items()},
        ulysses_size=draw(st.sampled_from(divisors(sizes.get("dp", 1) * sizes.get("fsdp", 1)))),
        etp_size=etp,
        ep_size=draw(st.sampled_from(divisors(dense // (etp or tp)))),
        vpp_size=draw(st.sampled_from([None, 2])) if pp > 1 else None,
        sequence_parallel=tp > 1 and draw(st.booleans()),
        device_type=draw(st.sampled_from(["cuda", "cpu", "npu"])),
        order=order,
    )


@st.composite
def from_ranks(draw: DrawFn) -> DeviceMesh:
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    names = draw(st.permutations(["dp", "pp", "tp", "cp", "fsdp"]))[: len(shape)]
    held = draw(st.lists(st.integers(0, 99), min_size=math.prod(shape), max_size=math.prod(shape), unique=True))
    nested: list[object] = list(held)
    for size in reversed(shape[1:]):
        nested = [nested[start : start + size] for start in range(0, len(nested), size)]
    return DeviceMesh.from_ranks(nested, names)


@st.composite
def parts(draw: DrawFn) -> DeviceMesh:
    """Parts of meshes that can say their data ranks, and expert views."""
    mesh = draw(from_sizes() | from_ranks())
    dims = draw(st.lists(st.sampled_from(mesh.dim_names), min_size=1, unique=True))
    part = mesh.submesh(dims, draw(st.sampled_from(mesh.ranks)))
    return mesh.expert if part.data_dims is None else part


st.register_type_strategy(DeviceMesh, cast("st.SearchStrategy[DeviceMesh]", from_sizes() | from_ranks() | parts()))
