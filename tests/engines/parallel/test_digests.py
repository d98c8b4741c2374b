"""A digest of a tensor is another one where a bit, a row or a column is."""

from __future__ import annotations

import random

import pytest
import torch

from twinkle_engines.parallel.digests import digest_tensor

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64])
@pytest.mark.parametrize("shape", [(), (0,), (7,), (1, 5), (5, 1), (4, 6), (3, 2, 5)])
def test_what_changes_a_tensor_changes_its_digest(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    draw = random.Random(repr((dtype, shape)))
    torch.manual_seed(draw.randrange(1 << 30))
    values = (torch.randn(shape) * 9).to(dtype)
    assert digest_tensor(values) == digest_tensor(values.clone())
    assert digest_tensor(values) == digest_tensor(torch.stack([values, values], -1)[..., 0])  # in other memory
    if not values.numel():
        return
    for _ in range(20):
        other = values.clone()
        place = tuple(draw.randrange(size) for size in shape)
        other[place] = ~other[place] if dtype is torch.bool else other[place] + 1
        assert digest_tensor(other) != digest_tensor(values)
        for dim in range(len(shape)):
            moved = values.index_select(dim, torch.randperm(shape[dim]))
            assert torch.equal(moved, values) or digest_tensor(moved) != digest_tensor(values)
