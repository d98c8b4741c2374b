"""What the laws are drawn from: batches of every supported type, meshes of every shape; and when values are equal."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from tests import conformance as suite
from tests.conformance import Harness

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

torch.set_num_threads(1)
settings.register_profile("remote", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("remote")

SIZES = {"eight": 8, "four": 4, "two": 2, "one": 1}


@dataclass
class Columns:
    first: Any
    second: Any
    note: str = "note"


class Side(Enum):
    LEFT = 1


class Pair(NamedTuple):
    left: Any
    right: Any


def _leaf(rows: int) -> st.SearchStrategy[Any]:
    numbers = st.integers(-100, 100)
    lists = st.lists(
        st.one_of(numbers, st.text(max_size=2), st.lists(numbers, max_size=2)), min_size=rows, max_size=rows
    )
    shapes = st.sampled_from([(), (1,), (2, 0), (3, 2)])
    arrays = st.builds(
        lambda shape, dtype: np.arange(rows * int(np.prod(shape))).reshape(rows, *shape).astype(dtype),
        shapes,
        st.sampled_from(["float32", "int64", "uint8", "bool", "complex64", "<U3"]),
    )
    tensors = st.builds(
        lambda shape, dtype: torch.arange(rows * int(np.prod(shape))).reshape(rows, *shape).to(dtype),
        shapes,
        st.sampled_from([torch.float32, torch.int64, torch.bfloat16, torch.bool]),
    )
    return st.one_of(lists, arrays, tensors)


@pytest.fixture(scope="session")
def batches() -> Callable[[int], st.SearchStrategy[Any]]:
    """Values with so many rows, nested in dicts, dataclasses and named tuples, beside parts without rows."""

    def of(rows: int) -> st.SearchStrategy[Any]:
        plain = st.one_of(st.none(), st.text(max_size=3), st.just(Side.LEFT))

        def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
            beside = st.one_of(inner, plain)
            return st.one_of(
                st.dictionaries(st.text(max_size=3), beside, max_size=3).flatmap(
                    lambda rest: inner.map(lambda value: {**rest, "rows": value})
                ),
                st.builds(Columns, inner, beside),
                st.builds(Pair, inner, beside),
            )

        return st.recursive(_leaf(rows), nested, max_leaves=4)

    return of


@pytest.fixture(scope="session")
def meshes() -> st.SearchStrategy[DeviceMesh]:
    """Meshes of up to 24 ranks: any dims in any order, ulysses, and ranks that follow no rule."""
    size = st.sampled_from([None, 1, 2, 3])

    @st.composite
    def regular(draw: st.DrawFn) -> DeviceMesh:
        sizes = {f"{name}_size": draw(size) for name in ("dp", "fsdp", "tp", "pp", "cp")}
        given = {name: value for name, value in sizes.items() if value is not None}
        while np.prod(list(given.values())) > 24:
            given.popitem()
        data = given.get("dp_size", 1) * given.get("fsdp_size", 1)
        ulysses = draw(st.sampled_from([share for share in (1, 2, 3) if data % share == 0]))
        names = [name.removesuffix("_size") for name in given]
        order = draw(st.none() | st.permutations(list(dict.fromkeys([*names, "dp"]))).map("-".join))
        options: dict[str, Any] = {**given, "ulysses_size": ulysses, "order": order}
        return DeviceMesh.from_sizes(**options)

    irregular = st.permutations(range(8)).map(
        lambda ranks: DeviceMesh.from_ranks(np.array(ranks).reshape(2, 2, 2), ("fsdp", "tp", "dp"))
    )
    return st.one_of(regular(), irregular)


def equal(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and np.array_equal(left, right)
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if dataclasses.is_dataclass(left):
        return all(equal(getattr(left, f.name), getattr(right, f.name)) for f in dataclasses.fields(left))
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(equal, left, right))
    return bool(left == right)


@pytest.fixture(scope="session")
def same() -> Callable[[Any, Any], bool]:
    """Equal in type, shape, dtype and every element."""
    return equal


@pytest.fixture(scope="module", params=["local", "threads"])
def harness(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """Each backend of this package, with a group for each of the suite's sizes."""
    mode: str = request.param
    names = {size: f"of-{size}" for size in suite.SIZES}
    with session(mode, groups=[DeviceGroup(name, size, "CPU") for size, name in names.items()]):
        yield Harness(mode, names, str(tmp_path_factory.mktemp("gates")), in_process=mode == "local")


@pytest.fixture
def threads() -> Iterator[None]:
    """A runtime of threads, with groups "eight", "four", "two" and "one"."""
    with session("threads", groups=[DeviceGroup(name, size, "CPU") for name, size in SIZES.items()]):
        yield
