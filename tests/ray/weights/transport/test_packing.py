"""Copies of many and of large tensors: with one thread or several, the same bytes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
import torch

from twinkle_ray.weights.transport.packing import copy_all

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGE = 3_000_000


@pytest.fixture(params=[1, 2], autouse=True)
def torch_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    "shapes",
    [[(LARGE,)], [(1, LARGE)], [(LARGE, 1)], [(3, 5), (0, 4), (), (1500, 1000), (7,), (1, LARGE)], [(500, 13)] * 500],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn])
def test_all_bytes_are_copied(shapes: list[tuple[int, ...]], dtype: torch.dtype) -> None:
    sources = [(torch.rand(shape) * 100).to(dtype) for shape in shapes]
    targets = [torch.nn.Parameter(torch.zeros(shape), requires_grad=True) for shape in shapes]
    if dtype is not torch.float32:
        targets = [torch.nn.Parameter(target.detach().to(dtype), requires_grad=False) for target in targets]
    copy_all(targets, sources)
    for target, source in zip(targets, sources, strict=True):
        assert torch.equal(target.detach().float(), source.float())
    assert all(target.grad_fn is None for target in targets)


def test_strided_ends_and_other_dtypes(torch_threads: int) -> None:
    source = torch.rand(2000, 1500).t()
    target = torch.zeros(1500, 4000, dtype=torch.float64)[:, ::2]
    copy_all([target], [source])
    assert torch.equal(target, source.double())


def test_a_failure_in_any_part_is_raised_and_no_thread_is_left() -> None:
    sources = [torch.rand(LARGE), torch.rand(LARGE)]
    targets = [torch.zeros(LARGE), torch.zeros(LARGE - 1)]
    with pytest.raises(RuntimeError, match=r"shape|size"):
        copy_all(targets, sources)
    assert not [thread for thread in threading.enumerate() if "copy" in thread.name]
